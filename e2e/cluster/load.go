package cluster

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/annona-gateway/annona/e2e/oracle"
)

// Target is a stream of requests: to one gateway, with one key, at a steady rate.
type Target struct {
	Gateway   *Gateway
	Region    string
	Key, Path string
	PerSecond float64
}

// client keeps enough connections that a load opens none while it runs, and waits longer than any gateway does.
var client = &http.Client{
	Timeout:   10 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 512, MaxIdleConns: 4096, DisableCompression: true},
}

// Get sends one request and tells what its client saw; a broken connection counts as status 0.
func Get(ctx context.Context, gateway *Gateway, region, key, path string) oracle.Answer {
	answer, _, _ := Fetch(ctx, gateway, region, key, path)
	return answer
}

// Fetch is Get with the response's header and body.
func Fetch(ctx context.Context, gateway *Gateway, region, key, path string) (oracle.Answer, http.Header, string) {
	a := oracle.Answer{Region: region, Sent: time.Now()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway.URL+path, nil)
	if err != nil {
		return a, nil, err.Error()
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	resp, err := client.Do(req)
	a.Answered = time.Now()
	if err != nil {
		return a, nil, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	a.Answered, a.Status = time.Now(), resp.StatusCode
	return a, resp.Header, string(body)
}

// Run sends every target's requests at their times, whatever the answers take, for the duration, and returns what the clients
// saw by key. An open load, as clients that do not know each other make it; its size is fixed by rate and duration.
func Run(ctx context.Context, targets []Target, duration time.Duration) map[string][]oracle.Answer {
	answers := make(map[string][]oracle.Answer)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, target := range targets {
		wg.Go(func() {
			every := time.Duration(float64(time.Second) / target.PerSecond)
			tick := time.NewTicker(every)
			defer tick.Stop()
			var inFlight sync.WaitGroup
			for range int(duration / every) {
				inFlight.Go(func() {
					answer := Get(ctx, target.Gateway, target.Region, target.Key, target.Path)
					mu.Lock()
					defer mu.Unlock()
					answers[target.Key] = append(answers[target.Key], answer)
				})
				<-tick.C
			}
			inFlight.Wait()
		})
	}
	wg.Wait()
	return answers
}
