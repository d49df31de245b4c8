package gateway

import (
	"net"
	"net/http"
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

// hurry bounds what a client can hold up at both ends of a request; done ends the request.
func hurry(w http.ResponseWriter, r *http.Request, p patience) (done func()) {
	control := http.NewResponseController(w)
	if r.ProtoMajor > 1 {
		// A client of HTTP/2 can close one stream's window and keep the connection going. The answer's last piece leaves after us.
		return func() { _ = control.SetWriteDeadline(time.Now().Add(p.write)) } // an error: it is gone already
	}
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	// Without it the server reads a whole body that nobody asked for before it sends a 429.
	_ = control.EnableFullDuplex()                                          // a recorder cannot
	return func() { _ = control.SetReadDeadline(time.Now().Add(p.linger)) } // as above
}

// closes tells whether the connection must end with this answer, because others on the way may see another end of the request
// than we do: next to Transfer-Encoding a Content-Length may have stood (it is ignored, and what is behind the one end could be a
// request to the other), and HTTP/1.0 knows no Transfer-Encoding. Nothing that stands behind such a request is ever read.
func closes(r *http.Request) bool {
	return r.ProtoMajor == 1 && (len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1))
}
