package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// quiet is how long nothing may come from a gateway that waits for more of a request.
const quiet = 300 * time.Millisecond

// exchangeRaw sends text over one connection and returns all answers until the gateway closes it or waits for more.
func exchangeRaw(t *testing.T, addr, text string) (statuses []int) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, text) // the gateway may have had enough before the end
	r := bufio.NewReader(conn)
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		statuses = append(statuses, res.StatusCode)
		if err := conn.SetDeadline(time.Now().Add(quiet)); err != nil {
			t.Fatal(err)
		}
	}
}

// smuggled is a request of 53 bytes; with the end of a chunked body before it, it has 58.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\n\r\n"

// Whatever two parsers could disagree about, no bytes of what one of them takes for a body reach the upstream as a request, and
// the upstream gets at most one request, framed in one way.
func TestRequestSmuggling(t *testing.T) {
	const head = "POST /first HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\n"
	length := func(n string) string { return "Content-Length: " + n + "\r\n" }
	const chunked = "Transfer-Encoding: chunked\r\n"
	for name, text := range map[string]string{
		"CL.TE":                          head + length("58") + chunked + "\r\n0\r\n\r\n" + smuggled,
		"TE.CL":                          head + chunked + length("4") + "\r\n35\r\n" + smuggled + "\r\n0\r\n\r\n" + smuggled,
		"two lengths":                    head + length("0") + length("53") + "\r\n" + smuggled,
		"two lengths in one":             head + length("0, 53") + "\r\n" + smuggled,
		"two encodings":                  head + chunked + "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled,
		"an encoding that is none":       head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
		"chunked, and something":         head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + smuggled,
		"space before the colon":         head + "Transfer-Encoding : chunked\r\n" + length("5") + "\r\n0\r\n\r\n" + smuggled,
		"space before the colon, length": head + "Content-Length : 53\r\n\r\n" + smuggled,
		"tab behind the colon":           head + "Transfer-Encoding:\tchunked\r\n" + length("58") + "\r\n0\r\n\r\n" + smuggled,
		"a control character":            head + "Transfer-Encoding: \x0bchunked\r\n" + length("5") + "\r\n0\r\n\r\n" + smuggled,
		"obs-fold":                       head + "X-Fold: a\r\n " + chunked + length("58") + "\r\n" + "0\r\n\r\n" + smuggled,
		"obs-fold of the encoding":       head + "Transfer-Encoding:\r\n chunked\r\n" + length("58") + "\r\n0\r\n\r\n" + smuggled,
		"fold in the first line":         "POST /first HTTP/1.1\r\n " + length("53") + "Host: x\r\n\r\n" + smuggled,
		"bare LF in a chunk's size":      head + chunked + "\r\n1\nx\r\n0\r\n\r\n" + smuggled,
		"bare CR in a header":            head + "X-A: b\r" + chunked + length("58") + "\r\n0\r\n\r\n" + smuggled,
		"NUL in a header":                head + "X-A: b\x00c\r\n" + length("58") + "\r\n0\r\n\r\n" + smuggled,
		"a huge chunk":                   head + chunked + "\r\nfffffffffffffffff\r\n" + smuggled,
		"a chunk of a negative size":     head + chunked + "\r\n-1\r\n" + smuggled,
		"a chunk of 0x0":                 head + chunked + "\r\n0x0\r\n\r\n" + smuggled,
		"a chunk that is too long":       head + chunked + "\r\n1\r\nxy\r\n0\r\n\r\n" + smuggled,
		"a chunk's endless extension":    head + chunked + "\r\n1;" + strings.Repeat("a", 100_000) + "\r\nx\r\n0\r\n\r\n" + smuggled,
		"a negative length":              head + length("-1") + "\r\n" + smuggled,
		"a length with a sign":           head + length("+0") + "\r\n" + smuggled,
		"a length in hexadecimal":        head + length("0x35") + "\r\n" + smuggled,
		"a length that overflows":        head + length("18446744073709551616") + "\r\n" + smuggled,
		"an empty length":                head + length("") + "\r\n" + smuggled,
		"HTTP/1.0 with an encoding":      strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\n" + chunked + "\r\n0\r\n\r\n" + smuggled,
		"HTTP/1.0 with it hidden":        strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\n" + chunked + "\r\n" + smuggled,
		"two hosts":                      "POST /first HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" + smuggled,
		"no host":                        "POST /first HTTP/1.1\r\n\r\n" + smuggled,
		"a version of two digits":        strings.Replace(head, "1.1", "1.10", 1) + "\r\n" + smuggled,
		"trailers with a length":         head + chunked + "Trailer: Content-Length\r\n\r\n0\r\nContent-Length: 53\r\n\r\n" + smuggled,
		"an answer that needs no body":   head + length("53") + "Expect: 200-maybe\r\n\r\n" + smuggled,
	} {
		t.Run(name, func(t *testing.T) {
			up, lines := rawUpstream(t)
			cfg := testConfig(t, perUser, up)
			hasty(&cfg)
			g := run(t, cfg, &fakeStore{take: admitAll})
			statuses := exchangeRaw(t, g.Addr().String(), text)
			if len(statuses) > 1 {
				t.Errorf("answers %v: two requests were read", statuses)
			}
			if err := g.stop(); err != nil {
				t.Error(err)
			}
			for range len(lines) {
				if line := <-lines; !strings.HasPrefix(line, "POST /first HTTP/1.1|") || len(lines) > 0 {
					t.Errorf("the upstream got %q and %d more", line, len(lines))
				}
			}
		})
	}
}

// Requests behind one another are no smuggling: each is charged.
func TestPipelinedRequestsAreEachCharged(t *testing.T) {
	g, charged := gatewayTo(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, nil)
	const post = "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nContent-Length: 2\r\n\r\nok"
	if got := exchangeRaw(t, g.Addr().String(), post+post+smuggled); len(got) != 3 || charged.Load() != 3 {
		t.Errorf("answers %v, charged %d, want 3 and 3", got, charged.Load())
	}
}

// A client that closed its half while it waits gets no answer, above all no 200 that nobody gave.
func TestWhoHangsUpGetsNoAnswer(t *testing.T) {
	entered := make(chan struct{})
	g, _ := gatewayTo(t, func(_ http.ResponseWriter, r *http.Request) { close(entered); <-r.Context().Done() }, nil)
	conn := dial(t, g)
	_, _ = io.WriteString(conn, smuggled)
	<-entered
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); len(got) != 0 || err != nil {
		t.Errorf("answered %q, %v", got, err)
	}
	eventually(t, "the log shows it", func() bool { return strings.Contains(g.log.String(), `"status":499`) })
}

// A body in chunks reaches the upstream whole; the connection ends with the answer (see closes).
func TestChunkedBodyPasses(t *testing.T) {
	g, _ := gatewayTo(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, nil)
	a := raw(t, g.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
	if string(a.body) != "hello world" || !a.Close {
		t.Errorf("echoed %q, close %v", a.body, a.Close)
	}
}
