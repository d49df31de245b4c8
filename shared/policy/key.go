package policy

import (
	"errors"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
)

// ErrMissing is returned by Match when a policy with `missing: deny` lacks a key part: the gateway answers 401.
var ErrMissing = errors.New("the request lacks an identity that a policy needs")

// part is one kind of key part: its name and how a request answers it. An absent value is "", but for `all`.
type part struct {
	name  string
	value func(*Request) string
}

// parts are the key parts in the one order in which they are hashed, so that reordering a policy's `key` keeps its buckets.
var parts = []part{
	{"user", func(r *Request) string { return r.User }},
	{"api_key", func(r *Request) string { return r.APIKey }},
	{"ip", func(r *Request) string { return canonicalIP(r.network()) }},
	{"tier", func(r *Request) string { return r.Tier }},
	{"route", func(r *Request) string { return r.Route }},
	{"method", func(r *Request) string { return r.Method }},
}

// everyone is the key part that all requests share.
const everyone = "all"

// What key parts that name a header, a query parameter or a claim begin with, in the order in which they are hashed.
const (
	headerPart = "header:"
	queryPart  = "query:"
	claimPart  = "claim:"
)

// named are the key parts that go on with a name, by what they begin with.
var named = []string{headerPart, queryPart, claimPart}

// namedValue returns what the request has under a name, "" where that is absent.
func (a *asked) namedValue(kind, name string) string {
	switch kind {
	case headerPart:
		return joined(a.Header[textproto.CanonicalMIMEHeaderKey(name)])
	case queryPart:
		return joined(a.parameters()[name])
	default:
		return a.Claims[name]
	}
}

// joined writes all values of a header or a parameter as one. Who sends several of them is a client of its own, like who sends
// another value: which of them the upstream reads nobody here knows.
func joined(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values, ", ")
}

// partNames are all key parts, for the document.
func partNames() []string {
	names := make([]string, 0, len(parts)+len(named)+1)
	for _, part := range parts {
		names = append(names, part.name)
	}
	for _, part := range named {
		names = append(names, part+"NAME")
	}
	return append(names, everyone)
}

// canonicalIP writes an address in its one form: an IPv4 address that came as IPv6 is the IPv4 one, and a zone is the
// receiving host's name for a link, not the client's.
func canonicalIP(ip netip.Addr) string {
	if !ip.IsValid() {
		return ""
	}
	return ip.Unmap().WithZone("").String()
}

// network is the address that a client is counted by.
func (id *Identity) network() netip.Addr {
	if id.Network.IsValid() {
		return id.Network
	}
	return id.IP
}

// FieldsFor returns what Match would hash and display for one policy and an identity, for the admin API.
// It returns ErrMissing where the identity lacks a key part.
func (p *Policy) FieldsFor(r *Request) (fields []string, display string, err error) {
	return p.fieldsFor(&asked{Request: r})
}

func (p *Policy) fieldsFor(a *asked) (fields []string, display string, err error) {
	fields = make([]string, 0, 2+2*len(p.Parts))
	fields = append(fields, p.Name, p.counting())
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, name, value)
		}
	}
	for i := range parts {
		if p.keyedBy(parts[i].name) {
			add(parts[i].name, parts[i].value(a.Request))
		}
	}
	if p.keyedBy(everyone) {
		fields = append(fields, everyone, "")
	}
	for _, kind := range named {
		for _, part := range p.namedParts(kind) {
			add(part, a.namedValue(kind, part[len(kind):]))
		}
	}
	if len(fields) != cap(fields) {
		return nil, "", ErrMissing // so is a part that this version does not know: a shorter key would be another bucket
	}
	return fields, displayed(fields[2:]), nil
}

// counting names how p counts: another algorithm or window counts in another bucket (PROTOCOL.md A3), as another key part does.
// No algorithm's name holds a blank, so that no two of these are alike.
func (p *Policy) counting() string {
	if p.Window.IsZero() {
		return p.Algorithm.String()
	}
	return p.Algorithm.String() + " " + p.Window.String()
}

// namedParts returns p's key parts that begin with prefix, in the order in which they are hashed.
func (p *Policy) namedParts(prefix string) []string {
	var found []string
	for _, part := range p.Parts {
		if strings.HasPrefix(part, prefix) {
			found = append(found, part)
		}
	}
	slices.Sort(found)
	return found
}

func (p *Policy) keyedBy(name string) bool { return slices.Contains(p.Parts, name) }

// maxDisplay bounds the identity in words: a client may send a header of any length, and a bucket keeps but so much. What is
// hashed is never shortened.
const maxDisplay = 1_024

// displayed writes names and values as "user=acme,ip=10.0.0.1", and the key of everyone as "all".
func displayed(pairs []string) string {
	if len(pairs) == 2 && pairs[0] == everyone {
		return everyone
	}
	var text strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(pairs[i])
		text.WriteByte('=')
		text.WriteString(pairs[i+1])
	}
	if text.Len() > maxDisplay {
		return strings.ToValidUTF8(text.String()[:maxDisplay], "") + "…"
	}
	return text.String()
}
