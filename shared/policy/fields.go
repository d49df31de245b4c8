package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// policyFields are all fields of a policy that the document's format knows, in the order of its description.
var policyFields = []string{
	"name", "match", "key", "missing", "algorithm", "rate", "burst", "max_delay", "limit", "window", "timezone", "anchor",
	"scope", "cost", "tiers", "overrides", "on_loss", "on_failure", "enforce", "candidate_of", "ban", "lease_wait", "allotment", "owner",
}

// requiredFields have no default, whatever the algorithm; each with what to write.
var (
	requiredFields   = []string{"name", "key", "algorithm", "scope", "on_failure"}
	requiredRemedies = map[string]string{
		"name":       "write name: and a short name, such as api-per-user",
		"key":        "write key: [user], or another of " + strings.Join(partNames(), ", "),
		"algorithm":  "write algorithm: " + orList(algorithmNames()),
		"rate":       "write rate: and a number and a time, such as 100/min",
		"limit":      "write limit: and a whole number",
		"window":     "write window: and a time, such as 1h, or day, week or month",
		"scope":      "write scope: global for one budget over all regions, or scope: region for one in each",
		"on_failure": "write on_failure: {redis: closed, allocator: local}, or what else should happen while they are out",
	}
)

func algorithmNames() []string {
	var names []string
	for _, a := range limit.Algorithms() {
		names = append(names, a.String())
	}
	return names
}

// draft is a policy while it is read, with its fields as written.
type draft struct {
	*Policy
	node  *node
	found map[string]*node
	// nonsense is true where the algorithm is none: what numbers it would take nobody knows.
	nonsense bool
}

// policy reads one policy. It returns the name's node too, nil where there is no usable name.
func (r *reader) policy(d *Document, n *node) (*Policy, *node) {
	if !r.is(n, mapping, "write each policy as `- name: …`") {
		return nil, nil
	}
	p := draft{
		Policy: &Policy{AllotmentPPM: limit.Whole / 10, Enforced: true, OnLoss: LossFull},
		node:   n,
		found:  r.fields(n, policyFields),
	}
	if n := p.found["algorithm"]; n != nil {
		var ok bool
		if p.Algorithm, ok = limit.ParseAlgorithm(n.text); !ok {
			p.Algorithm, ok = limit.ParseAlgorithm(nearest(n.text, algorithmNames())) // which was probably meant
		}
		p.nonsense = !ok
	}
	r.required(p)
	for _, name := range policyFields {
		if field := p.found[name]; field != nil {
			r.policyField(p, name, field)
		}
	}
	if !p.nonsense {
		r.numbers(d, p)
		r.affordable(p)
		r.idleDelay(p)
	}
	r.idleBan(p)
	r.regionOnly(p)
	r.consistent(p)
	r.reachable(d, p)
	r.drafts = append(r.drafts, p)
	if p.Name == "" {
		return p.Policy, nil
	}
	return p.Policy, p.found["name"]
}

// consistent warns of fields that do nothing beside the others.
func (r *reader) consistent(p draft) {
	if p.Scope != RegionOnly {
		return
	}
	for _, name := range []string{"allotment", "lease_wait"} {
		if n := p.found[name]; n != nil {
			r.warn(n, faultf("remove it, or write scope: global", "%s does nothing in scope region, which leases no tokens", name))
		}
	}
}

// regionOnly refuses in scope global what no pool knows yet.
func (r *reader) regionOnly(p draft) {
	if p.Scope != Global {
		return
	}
	if p.Algorithm != limit.TokenBucket {
		r.refuse(p.found["scope"], faultf("write scope: region, for a budget in each region; or algorithm: token_bucket",
			"%s in scope global is not supported by this version yet", p.Algorithm))
	}
	refuse := func(n *node) {
		if n != nil {
			r.refuseName(n, faultf("write scope: region, or remove it", "%s in scope global is not supported by this version yet", n.name))
		}
	}
	if p.MaxDelay > 0 {
		refuse(p.found["max_delay"])
	}
	refuse(p.found["ban"])
	if cost := p.found["cost"]; cost != nil && cost.kind == mapping {
		refuse(itemOf(cost, "actual"))
		refuse(itemOf(cost, "refund"))
	}
}

func (r *reader) required(p draft) {
	needed := requiredFields
	if !p.nonsense {
		fields, count := numbersOf(p.Algorithm)
		needed = slices.Insert(slices.Clone(needed), slices.Index(needed, "scope"), fields[:count]...)
	}
	r.need(p.node, p.found, needed, requiredRemedies)
}

// policyField reads every field but the numbers, which hang together.
func (r *reader) policyField(p draft, name string, n *node) {
	switch name {
	case "name":
		p.Name = r.token(n, policyLetters)
	case "match":
		r.match(p, n)
	case "key":
		r.key(p, n)
	case "missing":
		p.DenyMissing = r.word(n, []string{"skip", "deny"}) == "deny"
	case "algorithm":
		r.word(n, algorithmNames())
	case "scope":
		p.Scope = Scope(r.word(n, []string{string(Global), string(RegionOnly)}))
	case "cost":
		r.cost(p, n)
	case "on_failure":
		r.onFailure(p, n)
	case "enforce":
		p.Enforced, p.EnforcedPPM = r.enforce(n)
	case "lease_wait":
		p.LeaseWait = r.leaseWait(n)
	case "allotment":
		if text, ok := r.text(n, "write a percentage such as 10%"); ok {
			p.AllotmentPPM = valueOf(r, n, text, parsePercent)
		}
	case "owner":
		p.Owner = r.owner(n)
	case "on_loss":
		r.onLoss(p, n)
	case "candidate_of":
		p.CandidateOf, p.Enforced = r.token(n, policyLetters), false
	case "ban":
		r.ban(p, n)
	}
}

// valueOf parses text and reports what is wrong with it at n.
func valueOf[T any](r *reader, n *node, text string, parse func(string) (T, *fault)) T {
	value, f := parse(text)
	if f != nil {
		r.refuse(n, f)
	}
	return value
}

func (r *reader) onLoss(p draft, n *node) {
	if scope := p.found["scope"]; scope != nil && scope.text == string(Global) {
		r.refuseName(n, faultf("remove it: global budgets are always exact", "on_loss is for scope region only"))
		return
	}
	p.OnLoss = Loss(r.word(n, []string{string(LossFull), string(LossEmpty)}))
}

// onFailure reads `closed`, which sets redis and leaves the allocator local, or `{redis: local, allocator: open}`.
func (r *reader) onFailure(p draft, n *node) {
	redis := []string{string(Open), string(Closed), string(Local)}
	if n.kind == scalar {
		p.OnRedis, p.OnAllocator = Failure(r.word(n, redis)), Local
		return
	}
	if !r.is(n, mapping, requiredRemedies["on_failure"]) {
		return
	}
	found := r.fields(n, []string{"redis", "allocator"})
	needed := []string{"redis", "allocator"}
	if scope := p.found["scope"]; scope != nil && scope.text == string(RegionOnly) {
		needed, p.OnAllocator = needed[:1], Local // a budget of one region asks no allocator
	}
	r.need(n, found, needed, map[string]string{
		"redis":     "write redis: closed, open or local",
		"allocator": "write allocator: local (go on with the region's own tokens) or open",
	})
	if redisNode := found["redis"]; redisNode != nil {
		p.OnRedis = Failure(r.word(redisNode, redis))
	}
	if allocator := found["allocator"]; allocator != nil {
		p.OnAllocator = Failure(r.word(allocator, []string{string(Local), string(Open)}))
	}
}

// enforce reads which part of the keys is enforced; 0 stands for all of them where enforced is true.
func (r *reader) enforce(n *node) (enforced bool, ppm int64) {
	text, ok := r.text(n, "write 100% to enforce, 0% to shadow")
	if !ok {
		return true, 0
	}
	ppm, f := parsePercent(text)
	if f != nil {
		r.refuse(n, faultf("write 100% to enforce, 0% to shadow, or the share of keys to enforce", "%s", f.message))
	}
	return ppm != 0, ppm % limit.Whole
}

const (
	// MaxLeaseWait is the longest that a request may wait for a lease.
	MaxLeaseWait = 2 * time.Second
	// MaxDelay is the longest that a request may wait for its turn in a leaky bucket: clients and proxies before it give up.
	MaxDelay = time.Minute
)

// leaseWait reads how long a request may wait for a lease. A written 0 must not become the default, for which the zero value
// stands: it is kept as the shortest wait there is, below any round trip.
func (r *reader) leaseWait(n *node) time.Duration {
	text, ok := r.text(n, "write a duration such as 500ms")
	if !ok {
		return 0
	}
	wait, f := parseWait(text, MaxLeaseWait)
	if f != nil {
		r.refuse(n, f)
	}
	return max(wait, time.Microsecond)
}

func (r *reader) owner(n *node) string {
	const remedy, most = "write a team or person in one line of at most 128 bytes", 128
	text, ok := r.text(n, remedy)
	if ok && (len(text) > most || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' })) {
		r.refuse(n, faultf(remedy, "the owner is too long or has more than one line"))
	}
	return text
}
