package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
)

// h2c is a client of HTTP/2 without TLS, as gRPC clients inside a network are.
func h2c(t *testing.T, config *http.HTTP2Config) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, HTTP2: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// call makes a gRPC call with one message, as the owner of key, and returns the answer.
func call(t *testing.T, client *http.Client, url, key string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/pkg.Service/Method", strings.NewReader("\x00\x00\x00\x00\x01x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/grpc+proto"}, "Te": {"trailers"}, "X-Api-Key": {key}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{res, body}
}

// A gRPC client that is not admitted gets a status of gRPC: 200, and trailers only.
func TestGRPCStatuses(t *testing.T) {
	t.Parallel()
	denied := func(bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{Outcome: bucket.Denied, States: []bucket.State{{Lacking: true, PoolAge: -1, RetryIn: 11_500_000}}}, nil
	}
	refused := func(bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{}, fmt.Errorf("%w: gone", bucket.ErrCouldNotAsk)
	}
	for name, row := range map[string]struct {
		take            func(bucket.Request) (bucket.Verdict, error)
		key             string
		status, message string
	}{
		"denied":           {denied, "key-a", "8", "Limit per-user: 10 per minute. Try again in 12 seconds."},
		"refused":          {refused, "key-a", "14", "Limits cannot be checked at the moment. Try again in a moment."},
		"wrong credential": {admitAll, "nobody", "16", "the credential is not valid; check it, and that it has not expired"},
		"upstream out":     {admitAll, "key-a", "14", "the upstream did not answer"},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %v", name, secure), func(t *testing.T) {
				t.Parallel() // because a server takes a second to say goodbye to HTTP/2
				cfg, client, scheme := testConfig(t, perUser, "http://127.0.0.1:1"), h2c(t, nil), "http://"
				if secure {
					var pool *x509.CertPool
					cfg.TLS, pool = certify(t, t.TempDir(), "localhost")
					transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
					t.Cleanup(transport.CloseIdleConnections)
					client, scheme = &http.Client{Transport: transport}, "https://"
				}
				g := run(t, cfg, &fakeStore{take: row.take})
				a := call(t, client, scheme+g.Addr().String(), row.key)
				if a.StatusCode != http.StatusOK || a.ProtoMajor != 2 || len(a.body) != 0 || len(a.Trailer) != 0 {
					t.Errorf("%s %d with %q and trailers %v: want 200 with nothing", a.Proto, a.StatusCode, a.body, a.Trailer)
				}
				if a.Header.Get("Grpc-Status") != row.status || !strings.HasPrefix(a.Header.Get("Grpc-Message"), row.message) ||
					a.Header.Get("Content-Type") != "application/grpc+proto" {
					t.Errorf("headers are %v, want status %s and message %q", a.Header, row.status, row.message)
				}
				if name == "denied" && (a.Header.Get("Retry-After") != "12" || a.Header.Get("Grpc-Retry-Pushback-Ms") != "12000" || a.Header.Get("Ratelimit") == "") {
					t.Errorf("a denied call is not told when to try again: %v", a.Header)
				}
				eventually(t, "the log has the status of gRPC", func() bool { return strings.Contains(g.log.String(), `"grpc_status":"`+row.status+`"`) })
			})
		}
	}
}

// What says application/grpc over HTTP/1.1 is no gRPC, and gets the status of HTTP; gRPC-Web goes over both.
func TestOnlyGRPCGetsItsStatuses(t *testing.T) {
	g := run(t, testConfig(t, perUser, "http://127.0.0.1:1"), &fakeStore{take: admitAll})
	for contentType, want := range map[string]int{"application/grpc": 502, "application/json": 502, "application/grpc-web+proto": 200} {
		a := raw(t, g.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nContent-Type: "+contentType+"\r\nContent-Length: 0\r\n\r\n")
		if a.StatusCode != want || (a.Header.Get("Grpc-Status") != "") != (want == 200) {
			t.Errorf("%s: status %d, grpc-status %q, want %d", contentType, a.StatusCode, a.Header.Get("Grpc-Status"), want)
		}
	}
}

func TestGRPCMessageIsEncoded(t *testing.T) {
	if got := percentEncoded("50 % of é\n~"); got != "50 %25 of %C3%A9%0A~" {
		t.Errorf("percentEncoded = %q", got)
	}
}

// grpcUpstream speaks HTTP/2 without TLS only, echoes messages as they come, and ends with trailers that it did not announce.
func grpcUpstream(t *testing.T) string {
	t.Helper()
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc+proto")
		w.Header().Set("X-Te", r.Header.Get("Te"))
		_ = http.NewResponseController(w).Flush()
		buffer := make([]byte, 64)
		for {
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(buffer[:n])
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "done")
		w.Header().Set(http.TrailerPrefix+"X-Tokens", "42")
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	return up.URL
}

// A call with streams both ways: each message is answered before the next is sent, the trailers arrive, and it is charged once.
func TestGRPCEndToEnd(t *testing.T) {
	url := grpcUpstream(t)
	g, charged := gatewayTo(t, nil, func(c *Config) { c.Routes[0].Upstreams = []string{url} })
	reader, writer := io.Pipe()
	answers := make(chan *http.Response, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := h2c(t, nil)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.Addr().String()+"/pkg.Service/Method", reader)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = http.Header{"Content-Type": {"application/grpc+proto"}, "Te": {"trailers"}, "X-Api-Key": {"key-a"}}
		res, err := client.Do(req) //nolint:bodyclose // closed below
		if err != nil {
			t.Error(err)
		}
		answers <- res
	}()
	var res *http.Response
	buffer := make([]byte, 5)
	for _, message := range []string{"first", "other"} {
		if _, err := io.WriteString(writer, message); err != nil {
			t.Fatal(err)
		}
		if res == nil {
			if res = <-answers; res == nil {
				t.FailNow()
			}
			defer res.Body.Close()
		}
		if _, err := io.ReadFull(res.Body, buffer); err != nil || string(buffer) != message {
			t.Fatalf("answered %q, %v, want %q", buffer, err, message)
		}
	}
	_ = writer.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("Grpc-Message") != "done" || res.Header.Get("Ratelimit") == "" || res.Header.Get("X-Te") != "trailers" {
		t.Errorf("header %v, trailer %v", res.Header, res.Trailer)
	}
	if charged.Load() != 1 {
		t.Errorf("charged %d times, want once", charged.Load())
	}
}

// A call that ends in the middle of its messages is the client's, and ends upstream, too.
func TestGRPCThatIsCancelledEndsUpstream(t *testing.T) {
	gone := make(chan struct{})
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	g, _ := gatewayTo(t, nil, func(c *Config) { c.Routes[0].Upstreams = []string{up.URL} })
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	res, err := h2c(t, nil).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cancel()
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Error("the upstream never heard of the end")
	}
}
