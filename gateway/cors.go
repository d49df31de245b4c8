package gateway

import (
	"net/http"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/gateway/proxy"
)

// Who may read an answer in a browser is the upstream's word. A gateway's own answers (429, 503, …) would be hidden from every
// script, Retry-After with them, so they repeat the last word that the route's upstream gave to the same origin: never more
// than it, and nothing to an origin that it has not answered yet. (A browser's preflight comes first and is such an answer.)

const (
	headerAllowOrigin      = echo.HeaderAccessControlAllowOrigin
	headerAllowCredentials = echo.HeaderAccessControlAllowCredentials
	headerExpose           = echo.HeaderAccessControlExposeHeaders

	// maxOrigins is how many pairs of route and origin are remembered; the one that was met longest ago makes room.
	maxOrigins = 4096
	// maxOrigin bounds one: a host name has 253 bytes at most.
	maxOrigin = 300
)

// allowance is what an upstream lets an origin do.
type allowance struct {
	origin      string // "*" or the origin itself
	credentials bool
}

// origins remembers what upstreams allow. It is safe for any number of goroutines.
type origins struct{ known *lru.Cache[string, allowance] }

func newOrigins() origins {
	known, err := lru.New[string, allowance](maxOrigins)
	if err != nil {
		panic(err) // a size that is not positive
	}
	return origins{known}
}

// learn takes in an upstream's answer to origin. Errors often lack the fields that every other answer has: they change nothing.
func (o origins) learn(route, origin string, status int, header http.Header) {
	said := header.Get(headerAllowOrigin)
	switch {
	case len(origin) > maxOrigin:
	case said == origin || said == "*":
		o.known.Add(route+"\n"+origin, allowance{said, header.Get(headerAllowCredentials) == "true"})
	case status >= http.StatusOK && status < http.StatusBadRequest: // an upgrade says nothing of it
		o.known.Remove(route + "\n" + origin)
	}
}

// repeat sets what origin is allowed on an answer of the gateway's own.
func (o origins) repeat(route, origin string, header http.Header) {
	may, known := o.known.Get(route + "\n" + origin)
	if !known {
		return
	}
	header.Set(headerAllowOrigin, may.origin)
	if may.credentials {
		header.Set(headerAllowCredentials, "true")
	}
	header.Add("Vary", "Origin")
}

// cross completes an answer to a request from another origin's page, if it is one.
func (g *Gateway) cross(header http.Header, r *http.Request, x *exchange) {
	origin := r.Header.Get(echo.HeaderOrigin)
	if origin == "" {
		return
	}
	target := x.target
	if target == nil { // refused before its route was looked for
		if path, err := proxy.Normalise(r.URL); err == nil {
			target, _ = g.proxy.Route(r.Host, path)
		}
	}
	switch {
	case target == nil:
	case x.err != nil:
		g.origins.repeat(target.Name, origin, header)
	default:
		g.origins.learn(target.Name, origin, x.answer.status, header)
	}
	expose(header)
}

// expose lets a browser's script read what an answer to another origin says of limits, beside what the upstream lets it read.
func expose(header http.Header) {
	var names []string
	for _, value := range header.Values(headerExpose) {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
	}
	before := len(names)
	for _, name := range slices.Concat(fieldNames[HeadersIETF], fieldNames[HeadersX], fieldNames[HeadersDraft06],
		[]string{"Retry-After", headerDegraded, "Grpc-Status", "Grpc-Message"}) {
		present := len(header[name])+len(header[http.CanonicalHeaderKey(name)]) > 0
		if present && !slices.ContainsFunc(names, func(has string) bool { return strings.EqualFold(has, name) }) {
			names = append(names, name)
		}
	}
	if len(names) > before {
		header.Set(headerExpose, strings.Join(names, ", "))
	}
}
