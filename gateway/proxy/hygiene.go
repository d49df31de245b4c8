package proxy

import (
	"context"
	"net/http/httputil"
	"strings"

	"go.opentelemetry.io/otel/propagation"
)

type trustedKey struct{}

// WithTrustedPeer marks ctx as that of a request whose peer is one of the operator's own proxies: what that one says of the way
// so far (X-Forwarded-Host, -Proto and their kin) is kept. Any other peer's is replaced.
func WithTrustedPeer(ctx context.Context) context.Context {
	return context.WithValue(ctx, trustedKey{}, true)
}

func trusted(ctx context.Context) bool {
	yes, _ := ctx.Value(trustedKey{}).(bool)
	return yes
}

// pathHeaders would have an upstream serve another path than the one that was matched.
var pathHeaders = map[string]bool{"X-Original-Url": true, "X-Rewrite-Url": true, "X-Original-Uri": true}

// wayHeaders tell of the way so far and of whom it began with, as all that begins with X-Forwarded- does. Upstreams believe them,
// so that nobody may write them but a proxy that is trusted.
var wayHeaders = map[string]bool{
	"Forwarded": true, "X-Forwarded": true, "X-Real-Ip": true, "X-Client-Ip": true, "X-Cluster-Client-Ip": true,
	"X-Original-Forwarded-For": true, "Cf-Connecting-Ip": true, "Cf-Connecting-Ipv6": true, "True-Client-Ip": true,
	"Fastly-Client-Ip": true, "Fly-Client-Ip": true,
}

// traceHeaders: the upstream hears of our span, which is part of a trusted caller's trace, and of no other.
var traceHeaders = map[string]bool{"Traceparent": true, "Tracestate": true, "Baggage": true}

// rewrite makes the upstream's request of the client's. ReverseProxy has taken off what is for one hop only, the headers that
// Connection lists among them, before anything is added here. The upstream's address is upstreams' business.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	c := callOf(r.In.Context())
	r.Out.Host = "" // the upstream's own name
	// ReverseProxy drops what it cannot parse of a query; nothing here reads one, so it goes on as it came.
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Trailer = nil // a header after the body would escape all of this
	keep := trusted(r.In.Context())
	for name := range r.Out.Header {
		if p.stays(name, keep) {
			continue
		}
		delete(r.Out.Header, name)
	}
	r.Out.Header.Del("X-Forwarded-For")
	r.SetXForwarded()
	forwardClient(r, c.id.IP, keep)
	c.target.Forward.set(r.Out.Header, &c.id)
	propagation.TraceContext{}.Inject(r.In.Context(), propagation.HeaderCarrier(r.Out.Header))
}

// stays tells whether a client's header goes on to the upstream.
func (p *Proxy) stays(name string, trusted bool) bool {
	known := folded(name)
	switch {
	case strings.HasPrefix(known, "Annona-"), p.strip[known], pathHeaders[known], traceHeaders[known]:
		return false
	case strings.HasPrefix(known, "X-Forwarded-"), wayHeaders[known]:
		return trusted && known == name
	}
	return true
}
