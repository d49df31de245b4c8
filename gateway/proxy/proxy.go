// Package proxy carries an admitted request to its upstream and the answer back, streaming both. It decides nothing about
// limits; what it cannot do it returns as an error, and writes no answer of its own.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/annona-gateway/annona/shared/policy"
)

// Why a request was not carried. Each has one status in the gateway.
var (
	ErrPath            = errors.New("the path is not one that can be forwarded")
	ErrNoRoute         = errors.New("no route leads there")
	ErrTooLarge        = errors.New("the request body is larger than this route takes")
	ErrUpstream        = errors.New("the upstream did not answer")
	ErrUpstreamTimeout = errors.New("the upstream did not answer in time")
)

// Proxy holds the routes, ready to serve.
type Proxy struct {
	routes []*Target
	strip  forwardedNames // headers that carry identities on any route; no client may set one on another

	buffers buffers
}

// Target is where a request goes: its route and the path to match and to forward.
type Target struct {
	Route

	bases   []*url.URL
	next    atomic.Uint64
	reverse *httputil.ReverseProxy
}

// call is one request on its way; it travels in the context of the request, where ReverseProxy's hooks find it.
type call struct {
	target *Target
	path   string
	id     policy.Identity
	err    error
}

type callKey struct{}

// New makes routes ready. They must be valid. Streams that break off are noted in log.
func New(routes []Route, log *slog.Logger) (*Proxy, error) {
	p := &Proxy{strip: forwardedNames{}}
	for _, route := range routes {
		p.strip.add(route.Forward)
	}
	for _, route := range routes {
		if route.Timeout == 0 {
			route.Timeout = DefaultTimeout
		}
		if route.MaxBody == 0 {
			route.MaxBody = DefaultMaxBody
		}
		t := &Target{Route: route}
		for _, upstream := range route.Upstreams {
			base, err := url.Parse(upstream)
			if err != nil {
				return nil, fmt.Errorf("route %q: upstream: %w", route.Name, err)
			}
			t.bases = append(t.bases, base)
		}
		t.reverse = &httputil.ReverseProxy{
			Rewrite:      p.rewrite,
			Transport:    transport(route.Timeout),
			BufferPool:   &p.buffers,
			ErrorHandler: keepError,
			ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		}
		p.routes = append(p.routes, t)
	}
	return p, nil
}

// Route returns where a request to host for path, normalised, goes, or ErrNoRoute.
func (p *Proxy) Route(host, path string) (*Target, error) {
	host = hostname(host)
	for _, t := range p.routes {
		if t.matches(host, path) {
			return t, nil
		}
	}
	return nil, ErrNoRoute
}

// Check refuses a request that says itself that it is too large for t, before it costs anything.
func (t *Target) Check(r *http.Request) error {
	if r.ContentLength > int64(t.MaxBody) {
		return ErrTooLarge
	}
	return nil
}

// Serve carries r to t's upstream with path and answers on w. If it returns an error it has written nothing.
// Events, WebSockets and other streams pass as they come: ReverseProxy flushes answers of unknown length at once.
func (t *Target) Serve(w http.ResponseWriter, r *http.Request, path string, id policy.Identity) error {
	c := &call{target: t, path: path, id: id}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(w, r.Body, int64(t.MaxBody))
	}
	t.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	return c.err
}

func keepError(_ http.ResponseWriter, r *http.Request, err error) {
	c := r.Context().Value(callKey{}).(*call) //nolint:forcetypeassert // Serve puts it there
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &tooLarge):
		c.err = ErrTooLarge
	case errors.As(err, &timeout) && timeout.Timeout():
		c.err = fmt.Errorf("%w: %w", ErrUpstreamTimeout, err)
	default:
		c.err = fmt.Errorf("%w: %w", ErrUpstream, err)
	}
}

// transport is a route's own, because the time to response headers is a property of a transport.
func transport(timeout time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: min(timeout, 10*time.Second), KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  timeout,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    256,
		MaxResponseHeaderBytes: 1 << 20,
		DisableCompression:     true, // the client's and the upstream's choice, passed on
	}
}

// Close lets go of idle connections.
func (p *Proxy) Close() {
	for _, t := range p.routes {
		if transport, ok := t.reverse.Transport.(*http.Transport); ok {
			transport.CloseIdleConnections()
		}
	}
}

func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	c := r.In.Context().Value(callKey{}).(*call) //nolint:forcetypeassert // Serve puts it there
	t := c.target
	base := t.bases[(t.next.Add(1)-1)%uint64(len(t.bases))]
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = base.Scheme, base.Host, ""
	r.Out.URL.Path = strings.TrimSuffix(base.Path, "/") + stripped(c.path, t.StripPrefix)
	r.Out.URL.RawPath = ""
	// ReverseProxy drops what it cannot parse of a query; nothing here reads one, so it goes on as it came.
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.SetXForwarded()
	forwardClient(r, c.id.IP)
	for name := range r.Out.Header {
		if strings.HasPrefix(name, "Annona-") {
			delete(r.Out.Header, name)
		}
	}
	p.strip.strip(r.Out.Header, r.Out.Trailer)
	t.Forward.set(r.Out.Header, &c.id)
	// The upstream hears of our span, which is part of a trusted caller's trace, and of no other.
	for _, name := range []string{"Traceparent", "Tracestate", "Baggage"} {
		r.Out.Header.Del(name)
	}
	propagation.TraceContext{}.Inject(r.In.Context(), propagation.HeaderCarrier(r.Out.Header))
}

// buffers lends ReverseProxy its copy buffers.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get lends a buffer.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

// Put takes one back.
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[bufferSize]byte)(buffer)) }
