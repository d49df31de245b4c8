package admin

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// UsageRequest names one client of one policy. It is a body, never a URL: URLs end in logs.
type UsageRequest struct {
	Policy   string          `json:"policy"`
	Identity policy.Identity `json:"identity"`
}

// Usage is what the allocator knows of one client's tokens under one policy.
type Usage struct {
	Policy   string       `json:"policy"`
	Variant  string       `json:"variant,omitempty"`
	Scope    policy.Scope `json:"scope"`
	KeyID    string       `json:"key_id"`
	Identity string       `json:"identity"`
	Limit    limit.Tokens `json:"limit"`
	// Remaining and Reset (whole seconds until all of the limit is free, or, with nothing remaining, until one token is) are
	// the best estimate; null where each region counts for itself, Reset also where no refill ever comes.
	Remaining *limit.Tokens `json:"remaining"`
	Reset     *int64        `json:"reset"`
	PoolLevel *limit.Tokens `json:"pool_level"`
	Regions   []RegionUsage `json:"regions"`
	Denials   []Denial      `json:"denials"`
}

// RegionUsage is one region's part: what it keeps without asking, what it leased and what became of that.
type RegionUsage struct {
	Region    string       `json:"region"`
	Allotment limit.Tokens `json:"allotment"`
	Lease     limit.Tokens `json:"lease"`
	Expires   *int64       `json:"expires"` // whole seconds from now; null without a lease
	Spent     limit.Tokens `json:"spent"`
	Denied    limit.Tokens `json:"denied"`
	HeardAt   *time.Time   `json:"heard_at"`
}

// Denial is one request that was denied lately.
type Denial struct {
	At      time.Time    `json:"at"`
	Region  string       `json:"region"`
	Cost    limit.Tokens `json:"cost"`
	TraceID string       `json:"trace_id,omitempty"`
}

func (s *Server) postUsage(c echo.Context, from *sources) error {
	var request UsageRequest
	if err := onlyQuery(c); err != nil {
		return err
	}
	if err := readJSON(c, &request); err != nil {
		return err
	}
	if err := tidy(&request.Identity); err != nil {
		return err
	}
	doc, regions := s.cfg.Current()
	if doc == nil || regions == nil {
		return ErrNotReady
	}
	p := doc.Policy(request.Policy)
	if p == nil {
		return errUnknownPolicy
	}
	fields, display, err := p.FieldsFor(&policy.Request{Identity: request.Identity})
	if err != nil {
		return fmt.Errorf("usage of %s: %w", p.Name, err)
	}
	key := s.cfg.Secret.Key(fields...)
	pool, found, err := from.lessor.Pool(c.Request().Context(), p.Name, key)
	if err != nil {
		return because(errLessorOut, err)
	}
	variant, budget := numbers(p, &request.Identity, s.cfg.Now(), pool, found)
	usage := Usage{
		Policy: p.Name, Variant: variant, Scope: p.Scope, KeyID: key.String(), Identity: display, Limit: budget.Capacity,
		Regions: regionUsages(p, budget, regions, pool, s.cfg.Now()),
		Denials: denials(from.lessor.Denials(key)),
	}
	if p.Scope == policy.Global {
		level := max(regions.Split(p).Pool(budget).Capacity, 0)
		if found {
			level = max(pool.Level, 0)
		}
		usage.PoolLevel = &level
		usage.Remaining, usage.Reset = estimate(budget, level, usage.Regions, pool)
	}
	return reply(c, usage)
}

// tidy brings an API key's hash to the form that gateways use.
func tidy(id *policy.Identity) error {
	if id.APIKey != "" {
		id.APIKey = strings.ToLower(id.APIKey)
		if sum, err := hex.DecodeString(id.APIKey); err != nil || len(sum) != 32 {
			return badRequest("identity.api_key must be the 64 hexadecimal digits of the key's SHA-256, never the key itself")
		}
	}
	return nil
}

// numbers returns which of p's numbers apply: those that the identity shows, else those that the pool was last asked under: the
// question may not say the client's tier.
func numbers(p *policy.Policy, id *policy.Identity, now time.Time, pool lessor.Snapshot, found bool) (string, limit.Budget) {
	variant, budget := p.Variant(id, now)
	if found && id.Tier == "" && variant == "" {
		if last, ok := p.BudgetOf(pool.Variant); ok {
			return pool.Variant, last
		}
	}
	return variant, budget
}

func regionUsages(p *policy.Policy, budget limit.Budget, doc *policy.Regions, pool lessor.Snapshot, now time.Time) []RegionUsage {
	split := doc.Split(p)
	usages := make([]RegionUsage, 0, len(doc.Regions))
	for _, region := range doc.Regions {
		u := RegionUsage{Region: region.Name, Allotment: budget.Capacity}
		if p.Scope == policy.Global {
			u.Allotment = split.Allotment(budget, region.Name).Capacity
		}
		if i := slices.IndexFunc(pool.Holdings, func(h ledger.Holding) bool { return h.Region == region.Name }); i >= 0 {
			h := pool.Holdings[i]
			u.Lease, u.Spent, u.Denied = h.Outstanding, h.Spent, h.Denied
			if h.Outstanding > 0 {
				left := secondsOf(h.ExpiresAt - pool.Now)
				u.Expires = &left
			}
			if h.HeardAt > 0 {
				u.HeardAt = instant(now.Add(-time.Duration(max(pool.Now-h.HeardAt, 0)) * time.Microsecond))
			}
		}
		usages = append(usages, u)
	}
	slices.SortFunc(usages, func(a, b RegionUsage) int { return strings.Compare(a.Region, b.Region) })
	return usages
}

// estimate adds up what can still be spent: the pool, the leases, and the allotment of each region that asks for nothing. A
// region draws on its allotment first, so one that leases or is denied has little of it left; what is left elsewhere the
// allocator cannot see and takes as full.
func estimate(
	budget limit.Budget, level limit.Tokens, regions []RegionUsage, pool lessor.Snapshot,
) (remaining *limit.Tokens, reset *int64) {
	sum := level
	for _, u := range regions {
		sum += u.Lease
		busy := slices.ContainsFunc(pool.Holdings, func(h ledger.Holding) bool {
			return h.Region == u.Region && (h.Outstanding > 0 || h.Demand > 0 || h.Want > 0)
		})
		if !busy {
			sum += u.Allotment
		}
	}
	sum = min(sum, budget.Capacity)
	lacking := (budget.Capacity - sum).Micro()
	if sum < 1 {
		lacking = limit.Tokens(1).Micro()
	}
	if wait := budget.TimeTo(lacking); wait < limit.Never {
		seconds := secondsOf(wait)
		reset = &seconds
	}
	return &sum, reset
}

// denials lists the newest first.
func denials(heard []lessor.Denial) []Denial {
	list := make([]Denial, 0, min(len(heard), maxDenials))
	newest := func(a, b lessor.Denial) int { return b.At.Compare(a.At) }
	sorted := slices.SortedStableFunc(slices.Values(heard), newest)
	for _, d := range sorted[:min(len(sorted), maxDenials)] {
		list = append(list, Denial{At: *instant(d.At), Region: d.Region, Cost: d.Cost, TraceID: d.TraceID})
	}
	return list
}
