package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// refetchEvery is how often a key set is fetched without a reason, minRefetch how often at most, however many tokens name
	// unknown keys: the URL is an issuer's, and a flood of forged tokens must not become one of fetches.
	refetchEvery = 5 * time.Minute
	minRefetch   = 10 * time.Second
	// firstRetry is the pause after the first fetch that failed; it doubles up to lastRetry.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// fetchTimeout and maxKeySet bound one fetch.
	fetchTimeout = 5 * time.Second
	maxKeySet    = 1 << 20
	maxRedirects = 3
	// awaitTimeout is how long a request waits for a fetch that may bring its key, maxAwaiting how many do at once.
	awaitTimeout = time.Second
	maxAwaiting  = 128
)

// remote fetches a key set from a URL, in one goroutine.
type remote struct {
	url    string
	use    func([]byte) error
	client http.Client
	log    *slog.Logger

	want, force chan struct{} // asks for a fetch: when one is due, at once
	awaiting    atomic.Int64
	failed      atomic.Pointer[string] // why the last fetch failed, nil if it did not

	mu      sync.Mutex
	ended   time.Time     // of the last fetch
	running bool          // one is under way
	done    chan struct{} // closed at the end of the next one
}

func newRemote(from string, use func([]byte) error, log *slog.Logger) *remote {
	return &remote{
		url: from, use: use, log: log, want: make(chan struct{}, 1), force: make(chan struct{}, 1), done: make(chan struct{}),
		client: http.Client{CheckRedirect: redirect, Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute, MaxIdleConns: 1,
			TLSHandshakeTimeout: fetchTimeout, MaxResponseHeaderBytes: maxKeySet,
		}},
	}
}

// run fetches, until ctx ends. What cannot be fetched or used changes nothing.
func (r *remote) run(ctx context.Context) {
	defer r.client.CloseIdleConnections()
	pause := firstRetry
	for {
		err := r.fetchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		next := refetchEvery
		if err == nil {
			pause = firstRetry
		} else {
			next, pause = pause, min(2*pause, lastRetry)
			r.log.ErrorContext(ctx, "the key set cannot be fetched; the last good one stays", "error", err)
		}
		if !r.rest(ctx, next) {
			return
		}
	}
}

// rest waits for the next fetch to be due, and tells whether there will be one.
func (r *remote) rest(ctx context.Context, next time.Duration) bool {
	timer := time.NewTimer(next)
	defer timer.Stop()
	soon := time.NewTimer(minRefetch)
	defer soon.Stop()
	var want <-chan struct{} // nobody is heard before a fetch is due
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-r.force:
			return true
		case <-soon.C:
			want = r.want
		case <-want:
			return true
		}
	}
}

// await asks for a fetch and waits for its end, if one is under way or due. It tells whether there was one.
func (r *remote) await(ctx context.Context) bool {
	r.mu.Lock()
	done, worth := r.done, r.running || r.ended.IsZero() || time.Since(r.ended) >= minRefetch
	r.mu.Unlock()
	poke(r.want)
	if !worth || r.awaiting.Add(1) > maxAwaiting {
		if worth {
			r.awaiting.Add(-1)
		}
		return false
	}
	defer r.awaiting.Add(-1)
	timer := time.NewTimer(awaitTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (r *remote) fetchOnce(ctx context.Context) error {
	r.mu.Lock()
	r.running = true
	r.mu.Unlock()
	source, err := r.fetch(ctx)
	if err == nil {
		err = r.use(source)
	}
	if err == nil {
		r.failed.Store(nil)
	} else {
		why := err.Error()
		r.failed.Store(&why)
	}
	select {
	case <-r.want: // answered by this fetch
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.ended = false, time.Now()
	close(r.done)
	r.done = make(chan struct{})
	return err
}

func (r *remote) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, fmt.Errorf("key set: %w", withoutURL(err))
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	res, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("key set: %w", withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("key set: the server answered %s", res.Status)
	}
	source, err := io.ReadAll(io.LimitReader(res.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("key set: %w", err)
	case len(source) > maxKeySet:
		return nil, fmt.Errorf("key set: more than %d bytes", maxKeySet)
	}
	return source, nil
}

// redirect follows a few, and none that gives up TLS.
func redirect(to *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	if via[len(via)-1].URL.Scheme == "https" && to.URL.Scheme != "https" {
		return errors.New("a redirect away from https")
	}
	return nil
}

// withoutURL is err without the URL, which may hold what logs must not.
func withoutURL(err error) error {
	if at, ok := errors.AsType[*url.Error](err); ok {
		return at.Err
	}
	return err
}

// poke puts a sign into a channel that has room for one.
func poke(signs chan<- struct{}) {
	select {
	case signs <- struct{}{}:
	default:
	}
}
