package ledger

import (
	"fmt"
	"slices"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// Knobs, in order of importance. Each bounds a memory or a wait; none of them bears on the bound itself.
const (
	// Horizon is how long what a region asked for counts as its demand (DESIGN.md 4).
	Horizon limit.Micros = limit.MicrosPerSecond
	// IdleFor is how long a full pool is kept after it was last heard of. It outlasts any message on its way, so that a
	// late one does not find its session unknown.
	IdleFor limit.Micros = 60 * limit.MicrosPerSecond
	// MaxPools is how many pools one shard holds, some 1.3 kB each with three regions; beyond
	// them a new key is answered busy.
	MaxPools = 1_000_000
	// MaxRegions is how many regions one shard hears of in a journal epoch: those there are, and those that went.
	MaxRegions = 256
	// MaxReplaced is how many replaced epochs of a region are refused by name. A region that begins epochs faster than
	// MaxReplaced in RefusedFor is answered busy, for forgetting one early would let a late item of it begin it anew.
	MaxReplaced = 64
	// RefusedFor is how long a replaced epoch is refused at least; longer than any contact that a document may set (C2).
	RefusedFor limit.Micros = 120 * limit.MicrosPerSecond
	// MaxTerms is how many terms of writers are remembered. An agent that echoes an older one costs a journal epoch.
	MaxTerms = 1024
)

// Terms are what the documents say at the time of a command.
type Terms struct {
	// Pool is the pool's budget for the item's policy and variant.
	Pool limit.Budget
	// Weights are the regions' weights. A region without weight gets nothing and may only settle.
	Weights map[string]uint64
	// TTL is a lease's life; Margin and DriftPPM are what the ledger waits beyond it.
	TTL, Margin limit.Micros
	DriftPPM    int64
}

// life returns how long after a decision its lease is over in every region, whatever its clock's rate.
func (t Terms) life() limit.Micros {
	drift := (int64(t.TTL)*t.DriftPPM + limit.Whole - 1) / limit.Whole
	return t.TTL + limit.Micros(drift) + t.Margin
}

// Command is one item to decide, at a reading of the writer's clock.
type Command struct {
	At     limit.Micros
	Region string
	Epoch  string
	Item   *leasepb.Item
	Terms  Terms
}

// Ledger is the state that a shard's facts add up to. It is not safe for concurrent use: the shard's one writer owns it.
type Ledger struct {
	// now is the newest instant of any fact since the writer's clock began; decisions are never older, so that a clock
	// which runs back neither refills twice nor lets a lease lapse early when it jumps forward again.
	now limit.Micros
	// emptyAt is the instant at which every unknown pool was empty, if emptied: the end of the first full lease of this
	// journal epoch. Without it an unknown pool is full.
	emptyAt limit.Micros
	emptied bool

	terms   []string // of writers, oldest first
	regions map[string]*region
	pools   map[poolID]*pool
	due     schedule // the same pools, by when time alone changes them
}

// poolID names a pool.
type poolID struct {
	policy string
	key    limit.Key
}

// New returns an empty ledger: no pool is known. Its first fact must be Begin's.
func New() *Ledger {
	return &Ledger{regions: map[string]*region{}, pools: map[poolID]*pool{}}
}

// Begin decides the first fact of a writer's term: its clock reads at. Every outstanding lease's full life restarts, no refill
// is credited for the gap. empty begins a journal epoch: whatever was known is forgotten, and pools hold nothing before a
// full lease has run out from at (F1). lost names the terms whose loss was noticed: they count as known from here on, else
// every other agent that echoes one of them would empty the pools once more.
func (l *Ledger) Begin(at limit.Micros, term string, t Terms, empty bool, lost ...string) *factpb.Fact {
	begun := &factpb.Begun{Term: term, Empty: empty, LifeUs: int64(t.life()), Lost: lost}
	return &factpb.Fact{AtUs: int64(at), What: &factpb.Fact_Begun{Begun: begun}}
}

// Apply makes fact true. It cannot fail; it panics if the invariant is broken, for a process that cannot count must not hand
// out tokens.
func (l *Ledger) Apply(fact *factpb.Fact) {
	at := limit.Micros(fact.GetAtUs())
	if begun := fact.GetBegun(); begun != nil {
		l.applyBegun(at, begun)
		return
	}
	l.now = max(l.now, at)
	switch what := fact.GetWhat().(type) {
	case *factpb.Fact_Decided:
		l.applyDecided(at, what.Decided)
	case *factpb.Fact_Lapsed:
		l.applyLapsed(what.Lapsed)
	case *factpb.Fact_Forgotten:
		l.applyForgotten(what.Forgotten)
	default:
		panic(fmt.Sprintf("ledger: fact of an unknown kind: %v; a later release wrote this journal, run that one", fact))
	}
}

// HasTerm reports whether the writer's term called term is part of this journal.
func (l *Ledger) HasTerm(term string) bool { return slices.Contains(l.terms, term) }

// unknown returns what a pool that nobody knows holds at an instant, and its mark: it is full, or empty at the end of the
// first lease of this journal epoch and refilled since.
func (l *Ledger) unknown(at limit.Micros, b limit.Budget) *pool {
	p := &pool{budget: b, mark: at, level: b.Capacity, due: -1}
	if l.emptied {
		p.level, p.mark = 0, l.emptyAt
		credited, mark := p.accrued(at, b)
		p.refill(credited, mark)
	}
	return p
}
