// How far two processors are apart.
#pragma once

namespace tilewright {

// Seconds in which a cache line goes from one processor to another and back, in the fastest of some
// short samples; takes about a tenth of a millisecond. 0 where there are no two such processors or
// threads could not be started and bound to them. Binds threads of its own only.
double exchange_seconds(int first, int second);

}  // namespace tilewright
