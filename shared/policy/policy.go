// Package policy reads the policy document: which requests, whose key, which limit, what when degraded. It parses and
// validates, says everything that is wrong at once with line and remedy, and matches requests. It decides nothing about tokens.
package policy

import (
	"net/netip"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// Scope says over what a policy's budget holds.
type Scope string

// The two scopes: one budget for all regions, or each region its own.
const (
	Global     Scope = "global"
	RegionOnly Scope = "region"
)

// Failure is what a policy does while a dependency is out. Its zero value is invalid, so that nobody forgets to choose.
type Failure string

// The failure modes of section 9. While Redis is out: Open admits, Closed refuses with 503, Local decides in the gateway.
// While the allocator is out: Local goes on with the region's own tokens, Open admits.
const (
	Open   Failure = "open"
	Closed Failure = "closed"
	Local  Failure = "local"
)

// TokenBucket is the only algorithm so far.
const TokenBucket = "token_bucket"

// MaxMatches is how many policies may match one request: their buckets and shard records must fit one script call (64 keys).
const MaxMatches = 32

// Policy is one validated rule.
type Policy struct {
	Name         string
	Methods      []string // upper case; empty: any
	Paths        []string // exact, or "/x/*": /x and all under it; empty: any
	Parts        []string // key parts in document order: user, api_key, ip, tier, route, method, all
	DenyMissing  bool     // missing: deny (401)
	Algorithm    string
	Budget       limit.Budget
	Tiers        map[string]limit.Budget
	Scope        Scope
	OnRedis      Failure
	OnAllocator  Failure
	AllotmentPPM int64
	Enforced     bool          // enforce: 0 % is shadow
	LeaseWait    time.Duration // 0: the default, from the measured round trip
	RateText     string        // the rate in words, for a person: "100 per minute"
	TierText     map[string]string
	Owner        string
}

// tierVariant begins the name of a tier's variant.
const tierVariant = "tier:"

// MaxCost is the largest cost that one request may have under p. (Costs beyond 1 come with cost rules.)
func (p *Policy) MaxCost() limit.Tokens { return 1 }

// Variant names which of p's numbers apply to a client of tier, and returns them.
func (p *Policy) Variant(tier string) (string, limit.Budget) {
	if b, ok := p.Tiers[tier]; ok {
		return tierVariant + tier, b
	}
	return "", p.Budget
}

// BudgetOf returns the numbers of a variant that Variant named; ok is false where p has no such variant.
func (p *Policy) BudgetOf(variant string) (b limit.Budget, ok bool) {
	if variant == "" {
		return p.Budget, true
	}
	tier, ok := strings.CutPrefix(variant, tierVariant)
	if !ok {
		return b, false
	}
	b, ok = p.Tiers[tier]
	return b, ok
}

// Identity is who makes a request, verified. Empty fields are absent.
type Identity struct {
	User   string     `json:"user,omitempty"`
	APIKey string     `json:"api_key,omitempty"` // the name under which the credential is known: the SHA-256 of the key in hex, never the key
	Tier   string     `json:"tier,omitempty"`
	IP     netip.Addr `json:"ip,omitzero"`
	// Network is what stands for IP in a key: the first address of the client's network. Zero: IP itself.
	Network netip.Addr `json:"-"`
	// Claims are what a token or the file of API keys says besides, scalars as text. Nobody writes the map.
	Claims map[string]string `json:"claims,omitempty"`
}

// Anonymous is the tier of a client without credential.
const Anonymous = "anonymous"

// Request is what policies match on and key by.
type Request struct {
	Identity
	Method string
	Path   string // normalised once: the same string that is forwarded
	Route  string // the gateway's route
}
