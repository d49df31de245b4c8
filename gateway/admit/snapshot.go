package admit

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// Snapshot is everything that a decision depends on, computed once per change of a document and never changed afterwards.
type Snapshot struct {
	document *policy.Document
	secret   *limit.Secret
	shards   int
	ttl      time.Duration
	parts    map[*policy.Policy]map[string]parts
	counts   map[*policy.Policy]counts
	// unserved are the global policies that cannot be asked about here, and why.
	unserved map[*policy.Policy]bool
	why      string
	names    []string
	// candidates are those of each policy that has some.
	candidates    map[*policy.Policy][]*policy.Policy
	hasCandidates bool
	// slotted is true where some policy gives slots.
	slotted bool
	// costHeaders are those that tell of costs: see StripCosts.
	costHeaders map[string]bool
}

// parts are the numbers of one variant of a policy as this region needs them.
type parts struct{ whole, own, pool limit.Budget }

// counts are a policy's labels of annona.decisions, by outcome.
type counts map[string]metric.MeasurementOption

// The outcomes that annona.decisions counts.
const (
	countAdmitted     = "admitted"
	countDenied       = "denied"
	countRefused      = "refused"
	countShadowDenied = "shadow_denied"
	countOpen         = "open"
)

// Compile prepares document for region. Without a regions document nobody knows this region's part of a global budget, so its
// global policies cannot be asked about; policies of scope region need none.
func Compile(document *policy.Document, regions *policy.Regions, region string, secret *limit.Secret) *Snapshot {
	s := &Snapshot{
		document: document, secret: secret, costHeaders: costHeaders(document), shards: policy.DefaultShards, ttl: policy.DefaultTimes().TTL,
		parts: map[*policy.Policy]map[string]parts{}, counts: map[*policy.Policy]counts{}, unserved: map[*policy.Policy]bool{},
		candidates: map[*policy.Policy][]*policy.Policy{},
	}
	if regions != nil {
		s.shards, s.ttl = regions.Shards, regions.Times.TTL
		if regions.Weights()[region] == 0 {
			s.why = fmt.Sprintf("the regions document does not name region %s; add it or correct the name", region)
		}
	} else {
		s.why = "there is no regions document yet; it comes from the allocator through the region's agent"
	}
	for _, p := range document.Policies {
		if p.Scope == policy.Global && s.why != "" {
			s.unserved[p] = true
			s.names = append(s.names, p.Name)
		}
		if current := document.Policy(p.CandidateOf); p.CandidateOf != "" && current != nil {
			s.candidates[current] = append(s.candidates[current], p)
			s.hasCandidates = true
		}
		s.slotted = s.slotted || p.Algorithm == limit.Concurrency
		s.parts[p] = variants(p, regions, region)
		s.counts[p] = labels(p.Name, region)
	}
	return s
}

// Revision is that of the policy document.
func (s *Snapshot) Revision() uint64 { return s.document.Revision }

// Unserved names the policies that cannot be asked about, and says why; none where all can.
func (s *Snapshot) Unserved() (names []string, why string) {
	if len(s.names) == 0 {
		return nil, ""
	}
	return s.names, s.why
}

// StripCosts takes away the headers in which policies let trusted peers say a request's cost: nobody else's may reach an upstream,
// which may believe them. Those in which upstreams say costs are nobody's: one that sends back what it was sent would let clients
// say what they pay. Many upstreams take X_Cost for X-Cost.
func (a *Admitter) StripCosts(header http.Header, trusted bool) {
	s := a.snapshot.Load()
	if s == nil || len(s.costHeaders) == 0 {
		return
	}
	for name := range header {
		said, known := s.costHeaders[hyphened(name)]
		if known && (!said || !trusted) {
			delete(header, name)
		}
	}
}

// costHeaders are the headers about costs, by their canonical names with hyphens: true where peers say them, false where only
// upstreams do.
func costHeaders(document *policy.Document) map[string]bool {
	names := map[string]bool{}
	for _, name := range document.CostHeaders() {
		names[hyphened(name)] = false
	}
	for _, p := range document.Policies {
		if p.Cost.Header != "" {
			names[hyphened(p.Cost.Header)] = true
		}
	}
	return names
}

func hyphened(name string) string { return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")) }

// rebased is a charge of an earlier document with the numbers that are in force now; false where its policy is gone, or counts
// something else.
func (s *Snapshot) rebased(c bucket.Charge) (bucket.Charge, bool) {
	p := s.document.Policy(c.Policy)
	if p == nil || p.Algorithm != c.Algorithm || p.Window.String() != c.Window.String() || (p.Scope == policy.Global) != c.Leased {
		return c, false
	}
	v, found := s.parts[p][c.Variant]
	if !found {
		return c, false
	}
	c.Revision, c.Part, c.Pool, c.OnLossEmpty = s.document.Revision, v.own, v.pool, p.OnLoss == policy.LossEmpty
	c.MaxDelay, c.Ban = p.MaxDelay, bucket.Ban(p.Ban)
	return c, true
}

func variants(p *policy.Policy, regions *policy.Regions, region string) map[string]parts {
	names := p.Variants()
	byVariant := make(map[string]parts, len(names))
	for _, variant := range names {
		whole, _ := p.BudgetOf(variant) // its own variants p has
		v := parts{whole: whole, own: whole}
		if p.Scope == policy.Global && regions != nil {
			split := regions.Split(p)
			v.own, v.pool = split.Allotment(whole, region), split.Pool(whole)
		}
		byVariant[variant] = v
	}
	return byVariant
}

func labels(name, region string) counts {
	c := counts{}
	for _, outcome := range []string{countAdmitted, countDenied, countRefused, countShadowDenied, countOpen} {
		c[outcome] = metric.WithAttributeSet(attribute.NewSet(
			attribute.String("policy", name), attribute.String("region", region), attribute.String("outcome", outcome)))
	}
	return c
}

// claim is one matched policy with its charge, and what came of it.
type claim struct {
	policy *policy.Policy
	parts  parts
	charge bucket.Charge

	asked bool         // state is that of the last take
	state bucket.State // after the last take that had this claim
	// receipt is of the take that charged it, where that may be given back; keeper is whose slots they are, localSlots are those
	// that this process gave of its own.
	receipt    bucket.Receipt
	keeper     *keeper
	localSlots limit.Tokens
	passed     bool // the policy is open and was left out
	shadow     bool // the policy is only looked at

	askedAt, answeredAt time.Time // when the last take was sent, and when its answer was here
	fills               uint64    // of the key's slot of waiters, when it was sent
}

func (s *Snapshot) claim(m policy.Matched) claim {
	key := s.secret.Key(m.Fields...)
	v := s.parts[m.Policy][m.Variant]
	return claim{policy: m.Policy, parts: v, charge: bucket.Charge{
		Ref:         bucket.Ref{Shard: key.Shard(s.shards), Key: key},
		Policy:      m.Policy.Name,
		Variant:     m.Variant,
		Revision:    s.document.Revision,
		Leased:      m.Policy.Scope == policy.Global,
		Part:        v.own,
		Pool:        v.pool,
		Cost:        m.Cost,
		Sealed:      s.secret.Seal(m.Display),
		OnLossEmpty: m.Policy.OnLoss == policy.LossEmpty,
		Algorithm:   m.Policy.Algorithm,
		Window:      m.Policy.Window,
		MaxDelay:    m.Policy.MaxDelay,
		Ban:         bucket.Ban(m.Policy.Ban),
	}}
}
