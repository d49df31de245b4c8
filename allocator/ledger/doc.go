// Package ledger keeps the account of one shard's pools: who holds which tokens. It decides and applies without a clock, a
// goroutine, a lock or a driver, so that production, replay and simulation run the same code.
//
// # Use
//
// [Ledger.Decide] reads: it says which facts a region's item brings about and what the region is answered. [Ledger.Apply]
// writes: it makes one fact true and cannot fail. [Ledger.Sweep] decides what time alone brings. The caller applies the facts of
// each decision at once, appends them to the journal, and answers only when the journal has acknowledged them; if it does
// not, the caller throws the ledger away and replays, so nobody has seen a state that is not durable. Facts carry numbers that
// were decided, not reasons: the rules below may change in a release, and an old journal still adds up to the same state.
//
// # What is out counts against the burst
//
// A pool has a level L and, for each region r, what is outstanding, O_r: never less than r can still spend. A simple ledger would
// refill L up to the capacity while regions hold leases. Then a key whose regions sit on 90 leased tokens has 90 more in the pool
// a moment later, and both are spent in one instant: twice the burst. So tokens that are out keep their place:
//
//	Invariant: L + Σ O ≤ capacity, after every fact; O_r ≥ 0.
//
// A token that is out leaves room for a new one only when it is reported spent, or has lapsed. The price is refill that a pool
// misses while all of it is out, and it is small as long as regions report within a fraction of the time that the pool takes to
// fill. Likewise refill comes before a lapse or a report makes room: until now those tokens might have been spent any moment,
// so time that has passed brings nothing in their place. One extreme: all out for 13 s and then lapsed, nothing was refilled.
// The other: nothing out, and the pool is an ordinary token bucket.
//
// # A lapse is spent
//
// A region stops at the end of its lease's ttl, counted from when it first sent the request. The ledger counts from the decision
// and adds the drift that two clocks may have, and a margin; it always stops later. What has not been reported by then may have
// been spent or not. A simple ledger would take it back. But the report may only be late, and then the tokens are spent twice.
// So a lapse is spent: O falls, L stays. H6: when the ledger cannot know, it assumes the worst for itself, and every error is
// on the side of admitting less.
//
// What lapsed is remembered as written off, for its reports may come yet. They are absorbed by it before they lower a newer O, else
// a report of old tokens would take new ones off the account while the region still has them. Which of the reported tokens are
// old ones nobody can tell; so returned ones are taken to be, first, because those alone would give credit.
//
// Nothing is granted, and nothing renewed, while something is written off and not yet reported. A region renews its lease
// whole: an answer with a ttl would carry tokens on that are in no account here, past the instant at which they were counted as
// over. For the same reason tokens that a region has and this journal never granted (the journal was lost) count as written off.
//
// # Sessions and repeats
//
// Counters are cumulative in a session, so that messages may repeat and overtake. The same (session, seq) is answered as it was,
// without a fact, also after a replay: the answer is part of the state. A newer seq that has not applied the last answer never
// will, so that grant is void and back in L (unless it lapsed: then it is spent, and only what was written off for it is
// forgotten, since nobody can report it). A new session or epoch voids nothing: a demoted store may serve the old one yet, so
// what was out is orphaned, which is out like everything else, until it would have lapsed.
//
//	Invariant: of each region, granted = spent + returned + lapsed + voided + outstanding.
//
// # Numbers that change
//
// Time up to the first decision under new numbers counts at the smaller of the old and the new rate; what accrued beyond whole tokens
// is kept as the time that it takes at the new rate. A capacity that grows gains room, never tokens. One that falls takes what is
// too much from L, which may thereby become negative: a debt that refill and returns pay first. While L is negative no answer
// renews a lease, else leases of the larger capacity would outlive it for ever. (A sweep knows no documents: the refill of a pool
// in which a lease lapses before anybody asks counts at the numbers that were heard last.)
//
// # Clocks
//
// Instants are readings of one writer's monotonic clock, taken when the item is decided; they may come out of order, and the
// ledger goes on from the newest. A new writer's clock is another one: its Begin keeps ages, restarts every lease's full life, and
// brings nothing for the gap that no clock measured. A journal epoch forgets all; pools are then empty at the end of a full
// life, when nobody can hold anything of the lost ones.
//
// # Memory
//
// A full pool of which nothing is out is as good as one never heard of, and is forgotten when it has been idle. A pool that is
// not full is never forgotten, for that would fill it. Everything else has a limit: see the constants.
package ledger

//go:generate sh -c "cd ../../shared/lease && buf generate --template buf.gen.yaml . && cd ../../allocator/ledger && buf generate --template ../../shared/lease/buf.gen.yaml ."
