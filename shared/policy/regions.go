package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// DefaultShards is how many shards there are where no regions document says otherwise.
const DefaultShards = 32

// Times are the lease protocol's durations (PROTOCOL.md D). They travel in the regions document and with every answer.
type Times struct {
	// Contact is how long a region counts as in contact after the last word of it.
	Contact time.Duration `json:"contact" yaml:"contact"`
	// TTL is a lease's life, counted by the region from when it first asked.
	TTL time.Duration `json:"ttl" yaml:"ttl"`
	// DriftPPM is by how much two clocks' rates may differ, in parts per million.
	DriftPPM int64 `json:"drift_ppm" yaml:"drift_ppm"`
	// Margin is what the allocator adds to a lease's life, beyond drift, before it counts it as lapsed.
	Margin time.Duration `json:"margin" yaml:"margin"`
	// DemotedFor is how long a demoted Redis master may go on serving.
	DemotedFor time.Duration `json:"demoted_for" yaml:"demoted_for"`
	// StandingFor is how long a region out of contact keeps its share.
	StandingFor time.Duration `json:"standing_for" yaml:"standing_for"`
}

// DefaultTimes are PROTOCOL.md's.
func DefaultTimes() Times {
	t := Times{Contact: 3 * time.Second, TTL: 10 * time.Second, DriftPPM: 10_000, DemotedFor: 15 * time.Second, StandingFor: 24 * time.Hour}
	t.Margin = t.DefaultMargin()
	return t
}

// DefaultMargin is 2 s + ttl/10 + ttl·drift.
func (t Times) DefaultMargin() time.Duration {
	return 2*time.Second + t.TTL/10 + t.TTL*time.Duration(t.DriftPPM)/limit.Whole
}

// Region is one region's line in the regions document.
type Region struct {
	Name   string `json:"name" yaml:"name"`
	Weight uint64 `json:"weight" yaml:"weight"`
}

// Regions is the regions document: who shares global budgets, how much, and in which times. The allocator owns it, agents
// mirror it into their Redis.
type Regions struct {
	Revision uint64   `json:"revision"`
	Regions  []Region `json:"regions"`
	Shards   int      `json:"shards"`
	Times    Times    `json:"times"`
}

// Weights returns the weight of each region.
func (r *Regions) Weights() map[string]uint64 {
	weights := make(map[string]uint64, len(r.Regions))
	for _, region := range r.Regions {
		weights[region.Name] = region.Weight
	}
	return weights
}

// Split returns how p's global budget is divided over the regions.
func (r *Regions) Split(p *Policy) limit.Split {
	return limit.Split{AllotmentPPM: p.AllotmentPPM, Weights: r.Weights(), Cost: p.MaxCost()}
}

// MaxRegions is how many regions a deployment may have.
const MaxRegions = 64

// regionLetters make a region's name, which is one token of a NATS subject: no dot, no wildcard.
const regionLetters = "abcdefghijklmnopqrstuvwxyz0123456789_-"

// MaxWeight is the largest weight of a region; with MaxRegions it keeps the sum of weights below 10⁹.
const MaxWeight = 10_000_000

// Check returns what is wrong with r, nil if nothing.
func (r *Regions) Check() error {
	var problems []error
	seen := map[string]bool{}
	if len(r.Regions) == 0 || len(r.Regions) > MaxRegions {
		problems = append(problems, fmt.Errorf("regions: %d given; give 1 to %d", len(r.Regions), MaxRegions))
	}
	for _, region := range r.Regions {
		if f := tokenFault(region.Name, regionLetters, fmt.Sprintf("write 1 to %d of %s", maxName, regionLetters)); f != nil {
			problems = append(problems, fmt.Errorf("region: %s: %s", f.message, f.remedy))
		}
		if region.Weight == 0 || region.Weight > MaxWeight {
			problems = append(problems, fmt.Errorf("region %s: weight %d; give 1 to %d", shown(region.Name), region.Weight, MaxWeight))
		}
		if seen[region.Name] {
			problems = append(problems, fmt.Errorf("region %s stands twice; remove one", shown(region.Name)))
		}
		seen[region.Name] = true
	}
	if r.Shards < 1 || r.Shards > 1024 {
		problems = append(problems, fmt.Errorf("shards: %d; give 1 to 1024", r.Shards))
	}
	return errors.Join(append(problems, r.Times.check())...)
}

func (t Times) check() error {
	switch {
	case t.Contact < 100*time.Millisecond || t.Contact > time.Minute:
		return fmt.Errorf("times.contact %s: give 100ms to 1m", t.Contact)
	case t.TTL < time.Second || t.TTL > 10*time.Minute:
		return fmt.Errorf("times.ttl %s: give 1s to 10m", t.TTL)
	case t.DriftPPM < 0 || t.DriftPPM > limit.Whole/10:
		return fmt.Errorf("times.drift_ppm %d: give 0 to %d", t.DriftPPM, limit.Whole/10)
	case t.Margin < 0 || t.Margin > day:
		return fmt.Errorf("times.margin %s: give 0s to 24h", t.Margin)
	case t.DemotedFor < 0 || t.DemotedFor > day:
		return fmt.Errorf("times.demoted_for %s: give 0s to 24h", t.DemotedFor)
	case t.StandingFor < 0 || t.StandingFor > 366*day:
		return fmt.Errorf("times.standing_for %s: give 0s to 366 days (8784h)", t.StandingFor)
	}
	return nil
}

// EncodeRegions writes r as JSON, regions sorted by name.
func EncodeRegions(r *Regions) ([]byte, error) {
	c := *r
	c.Regions = slices.SortedFunc(slices.Values(r.Regions), func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	data, err := json.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("encode regions document: %w", err)
	}
	return data, nil
}

// DecodeRegions reads what EncodeRegions wrote and checks it.
func DecodeRegions(data []byte) (*Regions, error) {
	var r Regions
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("regions document: %w", err)
	}
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("regions document: %w", err)
	}
	return &r, nil
}
