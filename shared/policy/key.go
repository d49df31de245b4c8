package policy

import (
	"errors"
	"net/netip"
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

// partNames are all key parts, for the document.
func partNames() []string {
	names := make([]string, 0, len(parts)+1)
	for _, part := range parts {
		names = append(names, part.name)
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
	fields = make([]string, 0, 2+2*len(p.Parts))
	fields = append(fields, p.Name, p.Algorithm)
	for i := range parts {
		if !p.keyedBy(parts[i].name) {
			continue
		}
		value := parts[i].value(r)
		if value == "" {
			return nil, "", ErrMissing
		}
		fields = append(fields, parts[i].name, value)
	}
	if p.keyedBy(everyone) {
		fields = append(fields, everyone, "")
	}
	if len(fields) != cap(fields) {
		return nil, "", ErrMissing // a part that this version does not know is absent from every request
	}
	return fields, displayed(fields[2:]), nil
}

func (p *Policy) keyedBy(name string) bool { return slices.Contains(p.Parts, name) }

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
	return text.String()
}
