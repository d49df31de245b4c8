package gateway

import (
	"bufio"
	"net"
	"net/http"
)

// answer is what a client gets. It sets our fields at the last moment, when those of an upstream are there to compare with,
// and remembers the status for the log. (Echo's own response takes an interim 1xx for the final answer, so the proxy writes here.)
type answer struct {
	http.ResponseWriter

	before func(http.Header)
	status int // 0 before the final header
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
	return a.ResponseWriter.Write(b) //nolint:wrapcheck // a writer among writers
}

// Hijack is for upgrades: ReverseProxy writes the 101 on the connection itself, from this header.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if a.status == 0 {
		a.final(http.StatusSwitchingProtocols)
	}
	return http.NewResponseController(a.ResponseWriter).Hijack() //nolint:wrapcheck // callers compare it with http.ErrNotSupported
}

// Unwrap lets http.ResponseController reach the server's own writer, to flush.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) final(status int) {
	a.status = status
	if a.before != nil {
		a.before(a.Header())
	}
}
