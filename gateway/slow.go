package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// patience bounds clients that are slow, on purpose or by accident. (A request's body is bounded by the proxy, which knows whether
// the upstream waits for it.) Streams last as long as they last: nothing here counts while there is nothing to send.
type patience struct {
	header time.Duration // for a request's header, and a TLS handshake
	write  time.Duration // for one piece of an answer, 32 KiB at most, to leave
	linger time.Duration // for the rest of a body that nobody wants; then the connection is closed instead
}

// patient is what a gateway runs with.
var patient = patience{header: 10 * time.Second, write: time.Minute, linger: 5 * time.Second}

// slowReaders is a listener whose connections do not wait for ever for a client that does not read.
type slowReaders struct {
	net.Listener

	write time.Duration
}

// Accept returns the next connection.
func (l slowReaders) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server compares it
	}
	return slowReader{conn, l.write}, nil
}

type slowReader struct {
	net.Conn

	write time.Duration
}

// Write gives each piece its own time.
func (c slowReader) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.write)); err != nil {
		return 0, err //nolint:wrapcheck // a connection among connections
	}
	return c.Conn.Write(b) //nolint:wrapcheck // as above
}

// maxUnwanted is how much of a body that nobody wants is read, for the connection to serve the next request.
const maxUnwanted = 256 << 10

// hurry bounds what a client can hold up when its request has been answered. The handler reads the body of what it returns, and
// calls done at its end, which may end the connection, with http.ErrAbortHandler.
func hurry(w http.ResponseWriter, r *http.Request, p patience) (_ *http.Request, done func()) {
	control := http.NewResponseController(w)
	switch {
	case r.ProtoMajor > 1:
		// A client of HTTP/2 can close one stream's window and keep the connection going. The last piece leaves after us.
		return r, func() { _ = control.SetWriteDeadline(time.Now().Add(p.write)) } // an error: it is gone already
	case r.Body == nil || r.Body == http.NoBody || r.Header.Get("Expect") != "":
		return r, func() {} // who expects to be told to go on is not waited for: the server closes
	}
	// The server would wait for a body that nobody asked for before it sends a 429. So the answer goes first, then the rest of the
	// body is read here: what is left on a connection must never be taken for a request.
	if control.EnableFullDuplex() != nil {
		return r, func() {} // a recorder
	}
	body := &watched{ReadCloser: r.Body}
	own := *r
	own.Body = body
	return &own, func() {
		if body.ended.Load() {
			return
		}
		_ = control.Flush()
		_ = control.SetReadDeadline(time.Now().Add(p.linger))
		if _, _ = io.CopyN(io.Discard, body, maxUnwanted); !body.ended.Load() {
			panic(http.ErrAbortHandler)
		}
	}
}

// watched is a body of which is known whether it was read to its end.
type watched struct {
	io.ReadCloser

	ended atomic.Bool
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err //nolint:wrapcheck // io.EOF has to stay itself
}

// closes tells whether the connection must end with this answer, because others on the way may see another end of the request
// than we do: next to Transfer-Encoding a Content-Length may have stood (it is ignored, and what is behind the one end could be a
// request to the other), and HTTP/1.0 knows no Transfer-Encoding. Nothing that stands behind such a request is ever read.
func closes(r *http.Request) bool {
	return r.ProtoMajor == 1 && (len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1))
}
