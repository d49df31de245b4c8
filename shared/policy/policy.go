// Package policy reads the policy document: which requests, whose key, which limit, what when degraded. It parses and
// validates, says everything that is wrong at once with line and remedy, and matches requests: which policies, whose key, which
// numbers, what cost. It decides nothing about tokens. DOCUMENT.md beside this file says what a document means.
package policy

import (
	"encoding/binary"
	"net/netip"
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

// MaxMatches is how many policies may match one request: their buckets and shard records must fit one script call (64 keys).
const MaxMatches = 32

// Loss is what a bucket of scope region holds that its store does not know any more.
type Loss string

// After a loss a budget starts full, which is the default and what the zero value means, or empty.
const (
	LossFull  Loss = "full"
	LossEmpty Loss = "empty"
)

// Policy is one validated rule.
type Policy struct {
	Name string

	// What a request must be for the policy to match: all fields, in each of them one of the entries; an empty field is any.
	Hosts    []string    // lower case, exact, or "*.x": all under x, not x
	Methods  []string    // upper case
	Paths    []string    // exact, or "/x/*": /x and all under it
	Headers  []Attribute // each of them
	Query    []Attribute // each of them
	ForTiers []string
	Claims   []Attribute // each of them
	Regions  []string    // of gateways

	Parts        []string // key parts in document order: user, api_key, ip, tier, route, method, header:X, query:X, claim:X, all
	DenyMissing  bool     // missing: deny (401)
	Algorithm    limit.Algorithm
	Budget       limit.Budget  // of windows and slots the N as Capacity, and no Rate
	Window       limit.Window  // of windows
	MaxDelay     time.Duration // of a token bucket: > 0 makes it a leaky bucket, whose requests wait for their turn up to that
	Tiers        map[string]limit.Budget
	Overrides    []Override // the first that applies goes before Tiers and Budget
	Cost         Cost
	Scope        Scope
	OnLoss       Loss // scope region only
	OnRedis      Failure
	OnAllocator  Failure
	AllotmentPPM int64
	Enforced     bool          // enforce: 0 % is shadow
	EnforcedPPM  int64         // the part of the keys that is enforced, in parts per million; 0 stands for all, see Enforces
	LeaseWait    time.Duration // 0: the default, from the measured round trip
	RateText     string        // the limit in words, for a person: "100 per minute", "1000000 per month", "20 at the same time"
	TierText     map[string]string
	Ban          Ban
	CandidateOf  string // the policy beside which this one only reports, "" where it is no candidate; a candidate is in shadow
	Owner        string
}

// Ban says when a client that was denied too often is banned: Denials of one key within Within ban it For. The zero value is
// never.
type Ban struct {
	Denials     int
	Within, For time.Duration
}

// Enforces tells whether p denies a client with this key, or only reports that it would. Which keys are enforced does not
// change from request to request, and a higher percentage keeps those of a lower one.
func (p *Policy) Enforces(key limit.Key) bool {
	if p.EnforcedPPM == 0 || !p.Enforced {
		return p.Enforced
	}
	// Not the bytes that choose the shard: a part of the keys is a part of every shard's.
	return binary.BigEndian.Uint64(key[8:])%limit.Whole < uint64(p.EnforcedPPM)
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
	Host   string              // as the client sent it; its port, case and last dot do not matter
	Path   string              // normalised once: the same string that is forwarded
	Query  string              // as the client sent it, without the question mark
	Header map[string][]string // by canonical name, as in net/http
	Route  string              // the gateway's route
	Region string              // the gateway's
	// TrustedPeer is true where whoever sent the request may say what it costs.
	TrustedPeer bool
	// At is when the request came, by the gateway's clock; it decides which overrides apply.
	At time.Time
}
