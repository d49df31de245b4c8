package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/annona-gateway/annona/shared/policy"
)

// reserved are headers that are not free to carry an identity: they steer the message itself.
var reserved = []string{
	"Host", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
	"Content-Type", "Content-Encoding", "Expect",
}

// fields are the headers of f by what they carry, for messages: ".user", ".claims.org".
func (f Forward) fields() map[string]string {
	fields := map[string]string{}
	for what, header := range map[string]string{".user": f.User, ".tier": f.Tier} {
		if header != "" {
			fields[what] = header
		}
	}
	for claim, header := range f.Claims {
		fields[".claims."+claim] = header
	}
	return fields
}

// problems are all mistakes in f.
func (f Forward) problems() []string {
	var problems []string
	seen := map[string]string{}
	fields := f.fields()
	for _, what := range slices.Sorted(maps.Keys(fields)) {
		header := fields[what]
		name := folded(header)
		switch {
		case !httpguts.ValidHeaderFieldName(header):
			problems = append(problems, fmt.Sprintf("%s: %q is not a header name", what, header))
		case slices.Contains(reserved, http.CanonicalHeaderKey(header)) || strings.HasPrefix(name, "Annona-"):
			problems = append(problems, fmt.Sprintf("%s: %s has a meaning of its own; take another header", what, header))
		case seen[name] != "":
			problems = append(problems, fmt.Sprintf("%s: %s carries %s already; take another header", what, header, seen[name]))
		}
		seen[name] = what
	}
	return problems
}

// forwardClient tells the upstream where the request comes from: from the verified client, by way of our peer. What the chain
// held before the client is dropped, anybody wrote it. Which scheme and host the client used only a trusted proxy can say.
func forwardClient(r *httputil.ProxyRequest, client netip.Addr, trusted bool) {
	const chain = "X-Forwarded-For"
	peer := r.Out.Header.Get(chain) // as ReverseProxy sees it: "" for a socket without addresses
	switch at, _ := netip.ParseAddr(peer); {
	case !client.IsValid() || at.Unmap().WithZone("") == client:
	case peer == "":
		r.Out.Header.Set(chain, client.String())
	default:
		r.Out.Header.Set(chain, client.String()+", "+peer)
	}
	for _, name := range []string{"X-Forwarded-Proto", "X-Forwarded-Host"} {
		if said := r.In.Header.Values(name); trusted && len(said) == 1 {
			r.Out.Header.Set(name, said[0])
		}
	}
}

// folded is a header's name as an upstream may see it: many make variables of headers, to which X-User-Id and X_User_Id are one.
func folded(name string) string { return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")) }

// forwardedNames are the headers that carry identities on any route. Whoever comes from outside with one would be believed there.
type forwardedNames map[string]bool

func (names forwardedNames) add(f Forward) {
	for _, header := range f.fields() {
		names[folded(header)] = true
	}
}

// set writes the verified identity. What does not fit into a header (it may come from a token) is left out.
func (f Forward) set(header http.Header, id *policy.Identity) {
	put := func(name, value string) {
		if name != "" && value != "" && httpguts.ValidHeaderFieldValue(value) {
			header.Set(name, value)
		}
	}
	put(f.User, id.User)
	put(f.Tier, id.Tier)
	for claim, name := range f.Claims {
		put(name, id.Claims[claim])
	}
}
