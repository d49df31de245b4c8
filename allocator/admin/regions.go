package admin

import (
	"cmp"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// The states of a region.
const (
	Live   = "live"   // heard within the contact time
	Silent = "silent" // not heard for longer, or never
)

// Region is one region as the allocator knows it.
type Region struct {
	Name         string       `json:"name"`
	Weight       uint64       `json:"weight"`
	Share        float64      `json:"share"` // of every global budget, 0 to 1
	State        string       `json:"state"`
	Epoch        string       `json:"epoch,omitempty"` // of its store
	Agents       []string     `json:"agents"`
	TokensLeased limit.Tokens `json:"tokens_leased"`
	LastHeard    *time.Time   `json:"last_heard"` // null: never, since this allocator started
	// SecretMismatch is true where the region hashes keys with another secret than the allocator's; it gets no tokens then.
	SecretMismatch bool `json:"secret_mismatch"`
}

// Times are the lease protocol's durations in whole seconds, rounded up.
type Times struct {
	Contact     int64 `json:"contact"`
	TTL         int64 `json:"ttl"`
	DriftPPM    int64 `json:"drift_ppm"`
	Margin      int64 `json:"margin"`
	DemotedFor  int64 `json:"demoted_for"`
	StandingFor int64 `json:"standing_for"`
}

// Regions is the regions document with what became of its regions.
type Regions struct {
	List[Region]

	Revision uint64 `json:"revision"`
	Shards   int    `json:"shards"`
	Times    Times  `json:"times"`
}

func (s *Server) getRegions(c echo.Context, from *sources) error {
	if err := onlyQuery(c); err != nil {
		return err
	}
	_, doc := s.cfg.Current()
	if doc == nil {
		return ErrNotReady
	}
	statuses := map[string]lessor.RegionStatus{}
	for _, status := range from.lessor.Regions() {
		statuses[status.Name] = status
	}
	var total uint64
	for _, region := range doc.Regions {
		total += region.Weight
	}
	answer := Regions{Revision: doc.Revision, Shards: doc.Shards, Times: timesOf(doc.Times)}
	answer.Items = make([]Region, 0, len(doc.Regions))
	for _, region := range doc.Regions {
		status, known := statuses[region.Name]
		if !known {
			status.Heard = -1
		}
		item := describeRegion(region.Name, status, doc.Times.Contact, s.cfg.Now())
		item.Weight, item.Share = region.Weight, float64(region.Weight)/float64(total)
		answer.Items = append(answer.Items, item)
		delete(statuses, region.Name)
	}
	// A region that left the document may still hold tokens.
	for name, status := range statuses {
		if status.Outstanding > 0 {
			answer.Items = append(answer.Items, describeRegion(name, status, doc.Times.Contact, s.cfg.Now()))
		}
	}
	slices.SortFunc(answer.Items, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	return reply(c, answer)
}

func describeRegion(name string, status lessor.RegionStatus, contact time.Duration, now time.Time) Region {
	r := Region{
		Name: name, State: Silent, Epoch: status.Epoch, Agents: append([]string{}, status.Agents...), TokensLeased: status.Outstanding,
		SecretMismatch: status.StoreFingerprintMismatch,
	}
	if status.Heard >= 0 {
		r.LastHeard = instant(now.Add(-status.Heard))
		if status.Heard <= contact {
			r.State = Live
		}
	}
	return r
}

func timesOf(t policy.Times) Times {
	return Times{
		Contact: wholeSeconds(t.Contact), TTL: wholeSeconds(t.TTL), DriftPPM: t.DriftPPM, Margin: wholeSeconds(t.Margin),
		DemotedFor: wholeSeconds(t.DemotedFor), StandingFor: wholeSeconds(t.StandingFor),
	}
}
