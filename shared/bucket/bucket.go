// Package bucket keeps one region's buckets in its Redis: take, give back, ask, fill, schedule, the tick that vouches for the
// store's clock, and what a region mirrors there. Every verb is one Lua script that decides and changes its record in one step,
// by Redis' own clock; Go only passes numbers in and reads integers out. LAYOUT.md beside this file is the stored layout.
package bucket

import (
	"errors"
	"time"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// MaxCharges is how many policies one take may charge: their buckets and shard records must fit one script call.
	MaxCharges = 32
	// MaxShards is how many shards a deployment may have.
	MaxShards = 1024
)

// Config says how to reach a region's Redis.
type Config struct {
	Mode         string        `yaml:"mode"` // single (cluster and sentinel come later)
	Addrs        []string      `yaml:"addrs"`
	Username     string        `yaml:"username"`
	PasswordFile string        `yaml:"password_file"`
	Timeout      time.Duration `yaml:"timeout"` // the longest that one request may wait for Redis; default 50 ms
	PoolSize     int           `yaml:"pool_size"`
	// ServerID names the server process where INFO cannot (an embedded store); read from INFO server otherwise.
	ServerID string `yaml:"-"`
	// EpochBegun, if set, hears of every epoch that this process began and why: "missing", "server" or "clock".
	EpochBegun func(shard int, reason string) `yaml:"-"`
}

// Ref names one bucket.
type Ref struct {
	Shard int
	Key   limit.Key
}

// Charge is what one policy takes for one request. A Cost of 0 is always admitted and changes nothing: a look at the bucket.
type Charge struct {
	Ref
	Policy   string
	Variant  string
	Revision uint64
	// Algorithm says how the policy counts; all but a token bucket without MaxDelay are of scope region only. The bucket's key
	// is of the algorithm too, so another algorithm is another bucket.
	Algorithm limit.Algorithm
	// Window is that of a windowed algorithm; the sliding ones need a fixed length. Another window of the same bucket begins as
	// after a loss (OnLossEmpty).
	Window limit.Window
	// MaxDelay makes a token bucket a queue: who finds it empty is admitted with a State.Delay of at most this, in order; up to
	// 24 h.
	MaxDelay time.Duration
	// Ban, unless zero, bans the bucket's key after repeated denials. Only of scope region.
	Ban Ban
	// Denials is how many requests were denied here from memory since the last take; they count towards Ban. 0 to 10^6.
	Denials int
	// Leased is true for scope global: beyond Part there is a pool to lease from.
	Leased bool
	// Part is what the region holds of its own: its allotment, or all of a limit of scope region. The algorithms that have no
	// refill have their N as Capacity, at most Algorithm.MaxN, and no Rate.
	Part limit.Budget
	// Pool is the pool's budget; zero unless Leased.
	Pool limit.Budget
	Cost limit.Tokens
	// Sealed is the identity behind the key, sealed; kept in a new record for the admin API.
	Sealed []byte
	// OnLossEmpty makes a bucket of scope region that the store does not know start empty and not full: it may have been lost.
	OnLossEmpty bool
	// Waits is the State.Round of the take by which this request already waits here, 0 where it does not: as long as no fill
	// has ended that round, taking again is the same wait and not another.
	Waits limit.Micros
	// Denied is the cost that was denied here from memory since the last take; it counts as unmet demand. Only where Leased.
	Denied limit.Tokens
}

// Request is one take: all charges or none.
type Request struct {
	Charges []Charge
	// MayWait lets the answer be Wait; otherwise unmet cost is a denial, and is counted as demand.
	MayWait bool
	// WaitFor is how long the caller goes on waiting, from now.
	WaitFor time.Duration
	// Traceparent is the W3C trace context that an announcement carries, or "".
	Traceparent string
	// GiveBackFor is for how long from now Store.GiveBack may return what this take charges; 0: not at all. Where a charge has a
	// MaxDelay it is at least the delay, and slots may be given back for ever.
	GiveBackFor time.Duration
	// Holder holds the slots that charges of limit.Concurrency take; needed where there is one.
	Holder Holder

	// forced charges what there is not, as a debt: Store.Correct's.
	forced bool
}

// Outcome is the script's decision.
type Outcome int

// The outcomes of a take that could be asked. Wait: nothing was charged, some bucket lacks tokens that a lease may bring, and
// the wait is registered as demand; take again when a fill is announced. Banned: nothing was charged, and nothing was looked at
// but that some charge's key is banned (State.Banned).
const (
	Admitted Outcome = iota + 1
	Denied
	Wait
	Banned
)

// State is a bucket's state after a take.
type State struct {
	// Lacking is true where this charge alone made the request wait or be denied.
	Lacking bool
	// Remaining is how many more tokens (slots, for Concurrency) would be admitted here at once: never negative, at most what
	// Part and the lease hold.
	Remaining limit.Tokens
	// Reset is how long until nothing is used any more, if nobody takes: 0 where nothing is, limit.Never where no time brings
	// it. 0 for Concurrency: nobody knows when a request ends.
	Reset limit.Micros
	// Delay is how long an admitted request has to wait for its turn (Charge.MaxDelay).
	Delay limit.Micros
	// Banned is how long the key's ban still lasts; 0 where there is none.
	Banned limit.Micros
	// Level is what a token bucket's own part holds, Left the lease. A negative Level is a debt, which refills first: of a limit
	// that was lowered below what was spent, of a cost that was corrected, or of requests that wait for their turn.
	Level limit.Micro
	Left  limit.Tokens
	// PoolLevel is the pool's level as last heard, PoolAge how long ago; PoolAge is negative where none was heard.
	PoolLevel limit.Tokens
	PoolAge   limit.Micros
	// RetryIn is how long until Cost may fit: by the own part's refill or when the pool is not dry any more; when enough is out
	// of the window; at least Banned; 0 where it fits, or where nobody knows: whether the pool has it, when a slot is given back;
	// limit.Never where it never will.
	RetryIn limit.Micros
	// Heard is how long ago the allocator answered anything about this shard; negative where never.
	Heard limit.Micros
	// Round names the time between two fills: a fill ends every wait, and whoever still lacks waits anew.
	Round limit.Micros
}

// Verdict answers a take.
type Verdict struct {
	Outcome Outcome
	States  []State // one a charge, in order
	// Delay is the largest of the States': the request waits for so long before it goes on.
	Delay limit.Micros
	// Receipts, one a charge, where the outcome is Admitted and Request.GiveBackFor was set or a charge is of Concurrency.
	Receipts []Receipt
}

// Receipt names what one charge took, for Store.GiveBack.
type Receipt struct {
	Ref
	Algorithm      limit.Algorithm
	Epoch          string
	Window         limit.Micros // start of the window that was charged, of windows with counts
	Entry          uint64       // number of the log's entry, or of the slot
	Session, Lease uint64       // the lease that FromLease was taken of
	FromLease      limit.Tokens // tokens of the lease
	FromPart       limit.Tokens // tokens of the own part
	At, Until      limit.Micros // instants of the store's clock: of the take, and when it is too late
	Turn           limit.Micros // of a request that waits in a queue, its turn; else 0
	Holder         Holder       // of a slot
}

// Back is what one receipt's charge turned out not to have cost. A receipt is given back at most once, with 0 Tokens too: then
// the bucket no longer reckons with it. That of a slot is given back whole, when its request has ended, and may be repeated
// until an answer comes: a slot is released once.
type Back struct {
	Receipt
	Tokens limit.Tokens // at most FromLease + FromPart
}

// Credited is what a give-back credited: less than was given back where the bucket might have refilled meanwhile, nothing
// where its epoch, its lease, its window or its numbers are others.
type Credited struct {
	Lease limit.Tokens
	Part  limit.Micro  // of a token bucket's own part
	Count limit.Tokens // of a window, a log or slots
}

// Correction is what a charge that was taken turned out to cost.
type Correction struct {
	Charge  Charge // as it was taken
	Receipt Receipt
	Actual  limit.Tokens // 0 to Algorithm.MaxN
}

// ErrCouldNotAsk is wrapped by every error of a take: no decision was made, which is never a denial. If the outcome of the
// call is unknown the charge may have happened.
var ErrCouldNotAsk = errors.New("could not ask the region's Redis")

// ErrHolderGone is wrapped, beside ErrCouldNotAsk, where a take named a holder that is gone in one of its shards: what it held is
// free. End its requests, and begin another holder.
var ErrHolderGone = errors.New("the holder of slots has not been renewed for 10 s, or the store has lost it")

// ErrOlderRevision is wrapped, beside ErrCouldNotAsk, where a take carried numbers of an older policy document than those that
// the region's buckets were brought to: read the documents anew.
var ErrOlderRevision = errors.New("another gateway has brought these limits to a newer policy document; this one's is older")

// ErrNotRun is wrapped, beside ErrCouldNotAsk, where the store surely charged nothing: its clock or its epoch stood in the way.
var ErrNotRun = errors.New("nothing was charged")

// View is a bucket as an agent sees it before it plans. Instants are the store's clock.
type View struct {
	Ref
	// Found is false where there is no record, or one of an older epoch: its lease is void, and nobody has asked for it since.
	Found    bool
	Epoch    string
	Policy   string
	Variant  string
	Revision uint64
	Sealed   []byte

	Session, Seq, Applied uint64
	// InFlight is true while seq waits for its answer and its deadline has not passed.
	InFlight                                        bool
	Left, Spent, Returned, Lapsed, Denied           limit.Tokens // counters are cumulative in the session
	Waiting                                         limit.Tokens // cost that requests wait for now
	Cost                                            limit.Tokens // smallest useful grant
	Now, ExpiresAt, LastSpentAt, DryUntil           limit.Micros
	AskedAt                                         limit.Micros // when the last item was made
	AskedSpent, AskedDenied                         limit.Tokens // counters in the last item
	AskedDemand                                     limit.Micro  // demand estimate in the last item
	AnsweredSpent, AnsweredReturned, AnsweredLapsed limit.Tokens // counters in the last item that was answered
	Traceparent                                     string
}

// Plan is what an agent wants to say and ask about the bucket in View.
type Plan struct {
	View View
	// Want and Waiting ask for tokens, Return gives back (at most what is left).
	Want, Waiting, Return limit.Tokens
	// Demand is the estimate, which the record keeps for the next one; reported in whole tokens, rounded up.
	Demand limit.Micro
	// NewSession abandons the session: what is left of its lease is given up.
	NewSession bool
	// Deadline is after how long without an answer another seq may be sent.
	Deadline time.Duration
	Draining bool
}

// Grant is the allocator's answer, to be applied to the bucket.
type Grant struct {
	Ref
	Epoch        string
	Session, Seq uint64
	Granted      limit.Tokens
	TTL, DryFor  time.Duration
	// FitsIn is how long until the pool's refill alone brings one more cost: what a denied client is told.
	FitsIn    time.Duration
	PoolLevel limit.Tokens
}

// Due schedules the next look of an agent at a bucket; a negative In takes it off the schedule.
type Due struct {
	Ref
	In time.Duration
}

// Announcement is a message from within a script: a bucket low on tokens, or one just filled.
type Announcement struct {
	Ref
	Traceparent string
}

// Mirror is what agents mirror into Redis for gateways to watch. Documents are the encoded forms.
type Mirror struct {
	PolicyRevision  uint64
	Policy          []byte
	RegionsRevision uint64
	Regions         []byte
	// RoundTrip is the agent's measured round trip to the allocator; 0 before the first.
	RoundTrip time.Duration
}

// Gateway is one gateway's registration in its region.
type Gateway struct {
	ID          string
	Revision    uint64
	Fingerprint string
	Heard       time.Duration // how long ago
}

// Asked is an item made by Ask, with the epoch that its envelope must name.
type Asked struct {
	Ref
	Epoch string
	Item  *leasepb.Item
}
