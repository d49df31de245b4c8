package lessor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	// mostAgents is how many agents of a region are remembered by name, agentName how much of one.
	mostAgents = 16
	agentName  = 64
	// agentFor is how long an agent that says nothing is still listed.
	agentFor = 60 * limit.MicrosPerSecond
	// mismatchFor is how long a region counts as having the wrong secret after an envelope that had.
	mismatchFor = 60 * limit.MicrosPerSecond
	// outstandingWait bounds how long Regions waits for the shards.
	outstandingWait = time.Second
)

// RegionStatus is what this process knows of a region.
type RegionStatus struct {
	Name string
	// Epoch is the one that the last envelope named.
	Epoch string
	// Agents are the names of those heard within a minute, sorted.
	Agents []string
	// Heard is how long ago the last envelope came, negative if none did.
	Heard time.Duration
	// StoreFingerprintMismatch is true where an envelope within a minute was hashed with another secret.
	StoreFingerprintMismatch bool
	// Outstanding is what the region may still spend of all pools.
	Outstanding limit.Tokens
}

// heard keeps who was heard of lately.
type heard struct {
	mu      sync.Mutex
	regions map[string]*regionHeard // at most policy.MaxRegions
}

type regionHeard struct {
	epoch      string
	at         limit.Micros
	ever       bool
	agents     map[string]limit.Micros // at most mostAgents
	mismatchAt limit.Micros
	mismatched bool
}

// envelope notes that env came at an instant. Its region is in the document.
func (h *heard) envelope(env *leasepb.Envelope, at limit.Micros) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regionLocked(env.GetRegion())
	r.epoch, r.at, r.ever = env.GetEpoch(), at, true
	name := env.GetAgent()
	name = name[:min(len(name), agentName)]
	maps.DeleteFunc(r.agents, func(_ string, seen limit.Micros) bool { return at-seen > agentFor })
	if _, known := r.agents[name]; known || len(r.agents) < mostAgents {
		r.agents[name] = at
	}
}

// wrongSecret notes that region's keys are hashed with another secret.
func (h *heard) wrongSecret(region string, at limit.Micros) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regionLocked(region)
	r.mismatchAt, r.mismatched = at, true
}

func (h *heard) regionLocked(name string) *regionHeard {
	r := h.regions[name]
	if r != nil {
		return r
	}
	if h.regions == nil || len(h.regions) >= policy.MaxRegions {
		// Only documents with other regions can bring more; those that are still there are heard again within a second.
		h.regions = map[string]*regionHeard{}
	}
	r = &regionHeard{agents: map[string]limit.Micros{}}
	h.regions[name] = r
	return r
}

// status returns what is known of region at an instant.
func (h *heard) status(region string, at limit.Micros) RegionStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.regions[region]
	if r == nil {
		return RegionStatus{Name: region, Heard: -1}
	}
	status := RegionStatus{Name: region, Epoch: r.epoch, Heard: -1}
	if r.ever {
		status.Heard = time.Duration(max(at-r.at, 0)) * time.Microsecond
	}
	for name, seen := range r.agents {
		if at-seen <= agentFor {
			status.Agents = append(status.Agents, name)
		}
	}
	slices.Sort(status.Agents)
	status.StoreFingerprintMismatch = r.mismatched && at-r.mismatchAt <= mismatchFor
	return status
}

// Regions returns what is known of every region in the document and of any other that still holds tokens, by name. Shards
// that do not answer within a second are left out of Outstanding.
func (l *Lessor) Regions() []RegionStatus {
	ctx, cancel := context.WithTimeout(context.Background(), outstandingWait)
	defer cancel()
	out := map[string]limit.Tokens{}
	if _, regions := l.cfg.Documents(); regions != nil {
		for _, region := range regions.Regions {
			out[region.Name] = 0
		}
	}
	for _, s := range l.shards {
		var held []ledger.Holding
		// A shard that does not serve knows nothing; the probe says so.
		_ = s.ask(ctx, func(books *ledger.Ledger, at limit.Micros) { held = holdings(books, at) })
		for _, h := range held {
			out[h.Region] += h.Outstanding
		}
	}
	at := l.cfg.Now()
	statuses := make([]RegionStatus, 0, len(out))
	for _, name := range slices.Sorted(maps.Keys(out)) {
		status := l.heard.status(name, at)
		status.Outstanding = out[name]
		statuses = append(statuses, status)
	}
	return statuses
}

// holdings returns what regions hold of all pools.
func holdings(books *ledger.Ledger, at limit.Micros) []ledger.Holding {
	var held []ledger.Holding
	for _, pool := range books.Pools(at) {
		for _, h := range pool.Holdings {
			if h.Outstanding > 0 {
				held = append(held, h)
			}
		}
	}
	return held
}
