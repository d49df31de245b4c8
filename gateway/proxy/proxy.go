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
	"sync"
	"time"

	"github.com/annona-gateway/annona/shared/policy"
)

// Why a request was not carried. Each has one status in the gateway.
var (
	ErrPath            = errors.New("the path is not one that can be forwarded")
	ErrNoRoute         = errors.New("no route leads there")
	ErrTooLarge        = errors.New("the request body is larger than this route takes")
	ErrSlowBody        = errors.New("the request body took too long")
	ErrBody            = errors.New("the request body cannot be read")
	ErrUpstream        = errors.New("the upstream did not answer")
	ErrUpstreamTimeout = errors.New("the upstream did not answer in time")
)

// Proxy holds the routes, ready to serve.
type Proxy struct {
	routes []*Target
	strip  forwardedNames // headers that carry identities on any route, which no client may set on another, and credentials

	buffers buffers
}

// Target is where a request goes: its route and the path to match and to forward.
type Target struct {
	Route

	grace     time.Duration
	upstreams *upstreams
	reverse   *httputil.ReverseProxy
}

// call is one request on its way; it travels in the context of the request, where ReverseProxy's hooks find it.
type call struct {
	target *Target
	path   string // without the route's prefix
	id     policy.Identity
	http2  bool
	body   *body // nil: none
	err    error
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	return ctx.Value(callKey{}).(*call) //nolint:forcetypeassert // Serve puts it there
}

// New makes routes ready. They must be valid. Upstreams that fail and streams that break off are noted in log. The headers that
// secret names carry credentials that are none of the upstream's business; they end here.
func New(routes []Route, log *slog.Logger, secret ...string) (*Proxy, error) {
	p := &Proxy{strip: forwardedNames{}}
	for _, name := range secret {
		p.strip[folded(name)] = true
	}
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
		ups, err := newUpstreams(route, log)
		if err != nil {
			return nil, err
		}
		p.routes = append(p.routes, &Target{
			Route: route, grace: bodyGrace, upstreams: ups,
			reverse: &httputil.ReverseProxy{
				Rewrite:      p.rewrite,
				Transport:    ups,
				BufferPool:   &p.buffers,
				ErrorHandler: keepError,
				ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
			},
		})
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
// Events, WebSockets, gRPC and other streams pass as they come: ReverseProxy flushes answers of unknown length at once.
func (t *Target) Serve(w http.ResponseWriter, r *http.Request, path string, id policy.Identity) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	c := &call{target: t, path: stripped(path, t.StripPrefix), id: id, http2: r.ProtoMajor > 1}
	r = r.WithContext(context.WithValue(ctx, callKey{}, c))
	if c.body = newBody(w, r, t, cancel); c.body != nil {
		r.Body = c.body
		if isGRPC(r) {
			c.body.release()
		}
	}
	defer c.body.end()
	t.reverse.ServeHTTP(w, r)
	return c.err
}

func keepError(_ http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	var timeout net.Error
	broken := c.body.failure()
	switch {
	case broken != nil:
		c.err = broken
	case errors.Is(context.Cause(r.Context()), ErrUpstreamTimeout):
		c.err = fmt.Errorf("%w: it stopped taking the body", ErrUpstreamTimeout)
	case errors.As(err, &timeout) && timeout.Timeout():
		c.err = fmt.Errorf("%w: %w", ErrUpstreamTimeout, err)
	default:
		c.err = fmt.Errorf("%w: %w", ErrUpstream, err)
	}
}

// Close lets go of idle connections.
func (p *Proxy) Close() {
	for _, t := range p.routes {
		t.upstreams.close()
	}
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
