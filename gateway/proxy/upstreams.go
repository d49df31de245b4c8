package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Passive health. An upstream that could not be reached, or did not answer in time, so many times in a row is left out for a
// while, then one request tries it: an answer brings it back, another failure leaves it out for twice as long, up to a bound. A
// few failures in a row are weather; a second is short enough to be missed by nobody; and half a minute is how late an upstream
// that is back may be found.
const (
	failuresUntilOut = 3
	firstOut         = time.Second
	longestOut       = 30 * time.Second
)

// upstream is one place where a route's requests may go.
type upstream struct {
	base *url.URL

	mu struct {
		sync.Mutex
		failures int           // in a row
		out      time.Duration // how long it was left out the last time; 0: it is in
		until    time.Time     // when a request may try it again
		trying   bool          // one does
	}
}

// url is where path goes at this upstream. A ";" of the client's is sent as %3B: it is text to whoever matched the path, and
// must not become a parameter, which many upstreams take off before they match, on the way.
func (u *upstream) url(in *url.URL, path string) *url.URL {
	out := *in
	base := strings.TrimSuffix(u.base.Path, "/")
	out.Scheme, out.Host, out.Path = u.base.Scheme, u.base.Host, base+path
	out.RawPath = (&url.URL{Path: base}).EscapedPath() + strings.ReplaceAll((&url.URL{Path: path}).EscapedPath(), ";", "%3B")
	return &out
}

// take tells whether a request may go there at now.
func (u *upstream) take(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.mu.out == 0:
		return true
	case u.mu.trying || now.Before(u.mu.until):
		return false
	}
	u.mu.trying = true
	return true
}

// What came of a request, for the health of its upstream.
type outcome int

const (
	answeredIt outcome = iota
	failedIt
	saysNothing // the client's doing
)

// ended takes note of what came of a request. It returns how long the upstream is now left out, 0 if it is not, and whether
// that is news.
func (u *upstream) ended(o outcome, now time.Time) (out time.Duration, changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.trying = false
	switch o {
	case answeredIt:
		changed = u.mu.out > 0
		u.mu.failures, u.mu.out = 0, 0
	case failedIt:
		// What was under way when it was put out, or went there because all are out, tells nothing new.
		if u.mu.failures++; u.mu.failures >= failuresUntilOut && !now.Before(u.mu.until) {
			u.mu.out = min(max(firstOut, 2*u.mu.out), longestOut)
			u.mu.until = now.Add(u.mu.out)
			changed = true
		}
	case saysNothing:
	}
	return u.mu.out, changed
}

// back is when the upstream may be tried again.
func (u *upstream) back() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.until
}

// upstreams carries a route's requests to one of its upstreams in turn. It is the transport of the route's ReverseProxy.
type upstreams struct {
	route   string
	timeout time.Duration
	all     []*upstream
	next    atomic.Uint64
	// plain speaks HTTP/1.1, or HTTP/2 where TLS agrees on it; streams speaks HTTP/2 only, which gRPC needs without TLS, too.
	plain, streams *http.Transport
	log            *slog.Logger
}

func newUpstreams(route Route, log *slog.Logger) (*upstreams, error) {
	u := &upstreams{
		route: route.Name, timeout: route.Timeout, log: log,
		plain: transport(route.Timeout, true), streams: transport(route.Timeout, false),
	}
	for _, text := range route.Upstreams {
		base, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("route %q: upstream: %w", route.Name, err)
		}
		u.all = append(u.all, &upstream{base: base})
	}
	return u, nil
}

// transport is a route's own, because the time to response headers is a property of a transport.
func transport(timeout time.Duration, http1 bool) *http.Transport {
	dialer := &net.Dialer{Timeout: min(timeout, 10*time.Second), KeepAlive: 30 * time.Second}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(http1)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(!http1)
	return &http.Transport{
		DialContext:            dialer.DialContext,
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		TLSHandshakeTimeout:    min(timeout, 10*time.Second),
		ResponseHeaderTimeout:  timeout,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    256,
		MaxResponseHeaderBytes: 1 << 20,
		DisableCompression:     true, // the client's and the upstream's choice, passed on
	}
}

func (u *upstreams) close() {
	u.plain.CloseIdleConnections()
	u.streams.CloseIdleConnections()
}

// RoundTrip sends r to an upstream, and to another one if no connection came about: then nothing of it has been sent.
func (u *upstreams) RoundTrip(r *http.Request) (*http.Response, error) {
	c := callOf(r.Context())
	start := time.Now()
	var tried []*upstream
	for {
		to := u.pick(tried)
		res, connected, err := u.send(to, r, c)
		if err == nil {
			c.body.release()
			return res, nil
		}
		if tried = append(tried, to); connected || len(tried) == len(u.all) || r.Context().Err() != nil || time.Since(start) >= u.timeout {
			return nil, err
		}
	}
}

// pick returns the next upstream in turn that was not tried yet and is not left out. If all are out, the one that is to be tried
// soonest is tried now: a request that may fail is better than one that must.
func (u *upstreams) pick(tried []*upstream) *upstream {
	now := time.Now()
	first := u.next.Add(1) - 1
	var soonest *upstream
	for i := range uint64(len(u.all)) {
		to := u.all[(first+i)%uint64(len(u.all))]
		if slices.Contains(tried, to) {
			continue
		}
		if to.take(now) {
			return to
		}
		if soonest == nil || to.back().Before(soonest.back()) {
			soonest = to
		}
	}
	return soonest
}

func (u *upstreams) send(to *upstream, r *http.Request, c *call) (res *http.Response, connected bool, err error) {
	var got atomic.Bool
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	out := r.WithContext(ctx)
	out.URL = to.url(r.URL, c.path)
	if c.body != nil && r.Body != nil {
		out.Body = c.body // not what ReverseProxy wrapped it in, for that is closed with the first try
	}
	via := u.plain
	if isGRPC(r) {
		via = u.streams
	}
	res, err = via.RoundTrip(out)
	o := answeredIt
	if err != nil {
		o = blame(r.Context(), c, err, got.Load())
	}
	if span, changed := to.ended(o, time.Now()); changed {
		u.tell(ctx, to, span, err)
	}
	return res, got.Load(), err
}

// blame tells whose fault a failed request is.
func blame(ctx context.Context, c *call, err error, connected bool) outcome {
	var timeout net.Error
	switch {
	case errors.Is(context.Cause(ctx), ErrUpstreamTimeout):
		return failedIt
	case ctx.Err() != nil || c.body.failure() != nil:
		return saysNothing
	case !connected || (errors.As(err, &timeout) && timeout.Timeout()):
		return failedIt
	}
	return saysNothing
}

func (u *upstreams) tell(ctx context.Context, to *upstream, out time.Duration, err error) {
	if out == 0 {
		u.log.InfoContext(ctx, "an upstream is back", "route", u.route, "upstream", to.base.Host)
		return
	}
	u.log.WarnContext(ctx, "an upstream is left out", "route", u.route, "upstream", to.base.Host, "for", out.String(), "error", err)
}

// isGRPC tells whether r is a call of gRPC proper, which needs HTTP/2 and its trailers all the way. (gRPC-Web does not.)
func isGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';') && callOf(r.Context()).http2
}
