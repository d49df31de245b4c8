package identity

import (
	"context"
	"net/http"
)

// MaxFailureAddrs is the bound that tests hold the memory to.
const MaxFailureAddrs = maxFailureAddrs

// FailureAddrs is how many addresses are remembered for wrong credentials.
func (r *Reader) FailureAddrs() int {
	r.failures.mu.Lock()
	defer r.failures.mu.Unlock()
	return r.failures.addrs.Len()
}

// SetTransport replaces the network that key sets are fetched over.
func (r *Reader) SetTransport(transport http.RoundTripper) {
	r.tokens.remote.client.Transport = transport
}

// Look looks at the files once, as the ticker of Run does.
func (r *Reader) Look(ctx context.Context) {
	for _, f := range r.files {
		f.look(ctx)
	}
}

// ParseForwarded returns the client that a chain names, which came from a proxy at 10.0.0.1.
func ParseForwarded(a *Addresses, lines []string) string {
	return a.walk(Peer("10.0.0.1:1"), lines).String()
}
