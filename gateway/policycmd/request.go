package policycmd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// question is the request that `check --request` asks about, as flags say it.
type question struct {
	line                                              string // GET /v1/x?q=1
	user, apiKey, ip, tier, host, route, region, when string
	headers, claims                                   []string
	trusted                                           bool
}

func (q *question) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&q.line, "request", "", "ask which policies match a request such as 'GET /v1/x?q=1'; what follows is about it")
	flags.StringVar(&q.user, "user", "", "its user")
	flags.StringVar(&q.apiKey, "api-key", "", "its API key, or the key's SHA-256 in 64 hexadecimal digits")
	flags.StringVar(&q.ip, "ip", "", "its client address")
	flags.StringVar(&q.tier, "tier", "", "its client's tier; anonymous where there is neither user nor API key")
	flags.StringArrayVar(&q.claims, "claim", nil, "a claim of its client, NAME=VALUE; may be repeated")
	flags.StringArrayVar(&q.headers, "header", nil, "a header, 'NAME: VALUE'; may be repeated")
	flags.StringVar(&q.host, "host", "", "its host")
	flags.StringVar(&q.route, "route", "", "the gateway's route that it takes")
	flags.StringVar(&q.region, "region", "", "the gateway's region")
	flags.BoolVar(&q.trusted, "trusted", false, "it comes from a peer that may say what a request costs")
	flags.StringVar(&q.when, "at", "", "when it comes, RFC 3339; default now")
}

// request reads the flags. Without --request there is none, and the others are a mistake.
func (q *question) request(now time.Time) (*policy.Request, string, error) {
	if q.line == "" {
		if q.used() {
			return nil, "", errors.New("--user, --header and their like are about --request 'GET /path'; give that, too")
		}
		return nil, "", nil
	}
	method, target, ok := strings.Cut(strings.TrimSpace(q.line), " ")
	if !ok || method == "" || strings.Contains(target, " ") {
		return nil, "", fmt.Errorf("--request %q: write 'METHOD /path'", q.line)
	}
	r := &policy.Request{
		Identity: policy.Identity{User: q.user, Tier: q.tier}, Method: method, Host: q.host, Route: q.route, Region: q.region,
		TrustedPeer: q.trusted, At: now,
	}
	var err error
	if q.ip != "" {
		if r.IP, err = netip.ParseAddr(q.ip); err != nil {
			return nil, "", fmt.Errorf("--ip %q: write one address", q.ip)
		}
	}
	if q.when != "" {
		if r.At, err = time.Parse(time.RFC3339, q.when); err != nil {
			return nil, "", fmt.Errorf("--at %q: write an instant such as 2026-01-31T18:00:00Z", q.when)
		}
	}
	if q.apiKey != "" {
		r.APIKey = keyName(q.apiKey)
	}
	if r.Claims, err = pairs("--claim", q.claims, "="); err != nil {
		return nil, "", err
	}
	headers := map[string][]string{}
	for _, text := range q.headers {
		name, value, ok := strings.Cut(text, ":")
		if name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); !ok || name == "" {
			return nil, "", fmt.Errorf("--header %q: write 'NAME: VALUE'", text)
		}
		headers[name] = append(headers[name], strings.TrimSpace(value))
	}
	r.Header = headers
	return r, target, nil
}

func (q *question) used() bool {
	return q.user+q.apiKey+q.ip+q.tier+q.host+q.route+q.region+q.when != "" || len(q.headers)+len(q.claims) > 0 || q.trusted
}

func pairs(flag string, texts []string, separator string) (map[string]string, error) {
	if len(texts) == 0 {
		return map[string]string{}, nil
	}
	found := make(map[string]string, len(texts))
	for _, text := range texts {
		name, value, ok := strings.Cut(text, separator)
		if !ok || name == "" {
			return nil, fmt.Errorf("%s %q: write NAME%sVALUE", flag, text, separator)
		}
		found[name] = value
	}
	return found, nil
}

// keyName is the name under which gateways know a key: its SHA-256, which the operator may have given already.
func keyName(key string) string {
	if raw, err := hex.DecodeString(key); err == nil && len(raw) == sha256.Size {
		return strings.ToLower(key)
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// answer is what a document makes of a request. Nothing in it is hashed: it is for the operator's own terminal.
type answer struct {
	Request string  `json:"request"`
	Exempt  bool    `json:"exempt"`
	Status  int     `json:"status,omitempty"` // of a request that fails
	Why     string  `json:"why,omitempty"`
	Matches []match `json:"matches"`
}

// match is one policy that applies. What a policy does not have is left out.
type match struct {
	Policy    string `json:"policy"`
	Key       string `json:"key"`
	Variant   string `json:"variant"`
	Algorithm string `json:"algorithm"`
	Limit     string `json:"limit"` // in words
	// Capacity is what is admitted at once, in a window or at the same time.
	Capacity limit.Tokens `json:"capacity"`
	Cost     limit.Tokens `json:"cost"`
	Scope    policy.Scope `json:"scope"`
	Enforced bool         `json:"enforced"`
	// Percent is set where a part of the keys is enforced: which those are only the deployment's secret tells.
	Percent float64 `json:"enforced_percent,omitempty"`
	// Burst is a token_bucket's capacity, as the document calls it.
	Burst limit.Tokens `json:"burst,omitempty"`
	// Began and Resets bound the fixed_window that the request is in.
	Began       string `json:"began,omitempty"`
	Resets      string `json:"resets,omitempty"`
	MaxDelay    string `json:"max_delay,omitempty"`
	Actual      string `json:"actual,omitempty"`
	Refund      []int  `json:"refund,omitempty"`
	Ban         string `json:"ban,omitempty"` // in words
	CandidateOf string `json:"candidate_of,omitempty"`
}

// matchOf tells what a policy that matches counts, at an instant.
func matchOf(m policy.Matched, at time.Time) match {
	p := m.Policy
	budget, _ := p.BudgetOf(m.Variant)
	told := match{
		Policy: p.Name, Key: m.Display, Variant: m.Variant, Algorithm: p.Algorithm.String(), Limit: p.RateOf(m.Variant), Capacity: budget.Capacity,
		Cost: m.Cost, Scope: p.Scope, Enforced: p.Enforced, Percent: float64(p.EnforcedPPM) * 100 / limit.Whole,
		Actual: p.Cost.Actual, Refund: p.Cost.Refund, CandidateOf: p.CandidateOf,
	}
	switch p.Algorithm {
	case limit.TokenBucket:
		told.Burst = budget.Capacity
	case limit.FixedWindow:
		told.Began, told.Resets = p.Window.Start(at).Format(time.RFC3339), p.Window.Next(at).Format(time.RFC3339)
	default:
	}
	if p.MaxDelay > 0 {
		told.MaxDelay = p.MaxDelay.String()
	}
	if p.Ban != (policy.Ban{}) {
		told.Ban = fmt.Sprintf("for %s after %s within %s", p.Ban.For, counted(p.Ban.Denials, "denial", "denials"), p.Ban.Within)
	}
	return told
}

// text writes m for a person, in one line.
func (m *match) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "  %s: key %s", m.Policy, m.Key)
	if m.Algorithm == limit.TokenBucket.String() {
		fmt.Fprintf(&text, ", limit %s, burst %d", m.Limit, m.Burst)
	} else {
		fmt.Fprintf(&text, ", %s, limit %s", m.Algorithm, m.Limit)
	}
	if m.Variant != "" {
		fmt.Fprintf(&text, " (%s)", m.Variant)
	}
	for _, part := range []struct{ words, value string }{
		{"now from", m.Began}, {"until", m.Resets}, {"waits up to", m.MaxDelay},
	} {
		if part.value != "" {
			fmt.Fprintf(&text, ", %s %s", part.words, part.value)
		}
	}
	fmt.Fprintf(&text, ", cost %d", m.Cost)
	if m.Actual != "" {
		fmt.Fprintf(&text, ", then what %s says", m.Actual)
	}
	for i, status := range m.Refund {
		fmt.Fprintf(&text, "%s %d", map[bool]string{true: ", nothing at", false: ","}[i == 0], status)
	}
	fmt.Fprintf(&text, ", scope %s", m.Scope)
	if m.Ban != "" {
		fmt.Fprintf(&text, ", banned %s", m.Ban)
	}
	switch {
	case m.CandidateOf != "":
		fmt.Fprintf(&text, ", reports beside %s", m.CandidateOf)
	case !m.Enforced:
		text.WriteString(", in shadow")
	case m.Percent != 0:
		fmt.Fprintf(&text, ", %g%% of keys enforced", m.Percent)
	}
	return text.String()
}

// ask finds what d makes of r, as a gateway would: target is normalised, and a client without credential is anonymous.
func ask(d *policy.Document, r *policy.Request, target string) answer {
	a := answer{Request: r.Method + " " + target, Matches: []match{}}
	if r.Tier == "" && r.User == "" && r.APIKey == "" {
		r.Tier = policy.Anonymous
	}
	u, err := url.ParseRequestURI(target)
	if err == nil {
		r.Query = u.RawQuery
		r.Path, err = proxy.Normalise(u)
	}
	if err != nil {
		a.Status, a.Why = http.StatusBadRequest, "the request's path cannot be read"
		return a
	}
	if a.Exempt = d.Exempts(&r.Identity); a.Exempt {
		return a
	}
	matched, err := d.Match(r)
	switch {
	case errors.Is(err, policy.ErrMissing):
		a.Status, a.Why = http.StatusUnauthorized, err.Error()
	case err != nil:
		a.Status, a.Why = http.StatusBadRequest, err.Error()
	}
	for _, m := range matched {
		a.Matches = append(a.Matches, matchOf(m, r.At))
	}
	return a
}

// text writes a for a person.
func (a *answer) text() string {
	var text strings.Builder
	switch {
	case a.Exempt:
		fmt.Fprintf(&text, "%s: exempt, no policy applies\n", a.Request)
	case a.Status != 0:
		fmt.Fprintf(&text, "%s: answered %d, %s\n", a.Request, a.Status, a.Why)
	default:
		fmt.Fprintf(&text, "%s: %s\n", a.Request, counted(len(a.Matches), "policy matches", "policies match"))
	}
	for i := range a.Matches {
		text.WriteString(a.Matches[i].text() + "\n")
	}
	return text.String()
}
