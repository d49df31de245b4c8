package gateway

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// answer is what a client gets. It sets our fields at the last moment, when those of an upstream are there to compare with,
// and remembers the status for the log. (Echo's own response takes an interim 1xx for the final answer, so the proxy writes here.)
type answer struct {
	http.ResponseWriter

	before func(http.Header)
	status int           // 0 before the final header
	write  time.Duration // for each piece to leave, where the connection does not see to it; 0: it does
	cut    *time.Timer
}

// WriteHeader passes interim answers through and completes the final one.
func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK && a.status == 0 {
		a.final(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.write > 0 {
		a.begin()
		defer a.cut.Stop()
	}
	return a.ResponseWriter.Write(b) //nolint:wrapcheck // a writer among writers
}

// FlushError flushes, in the time that a piece has.
func (a *answer) FlushError() error {
	if a.write > 0 {
		a.begin()
		defer a.cut.Stop()
	}
	return http.NewResponseController(a.ResponseWriter).Flush() //nolint:wrapcheck // a writer among writers
}

// begin starts the clock for a piece. A deadline of the stream's own would end it even with nothing to write.
func (a *answer) begin() {
	if a.cut == nil {
		a.cut = time.AfterFunc(a.write, func() { _ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Unix(1, 0)) })
		return
	}
	a.cut.Reset(a.write)
}

// Hijack is for upgrades: ReverseProxy writes the 101 on the connection itself, from this header.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if a.status == 0 {
		a.final(http.StatusSwitchingProtocols)
	}
	return http.NewResponseController(a.ResponseWriter).Hijack() //nolint:wrapcheck // callers compare it with http.ErrNotSupported
}

// Unwrap lets http.ResponseController reach the server's own writer.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) final(status int) {
	a.status = status
	if a.before != nil {
		a.before(a.Header())
	}
}
