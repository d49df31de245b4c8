package identity

import (
	"net"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderTimeout is how long a proxy may take for its PROXY header, which it sends at once.
const proxyHeaderTimeout = 5 * time.Second

// Listener returns l, whose connections have the peers that the PROXY headers of trusted proxies name, where that is configured.
// A proxy may leave the header out, as its health checks do; then it is itself the peer.
func (a *Addresses) Listener(l net.Listener) net.Listener {
	if !a.proxyProtocol {
		return l
	}
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: proxyHeaderTimeout,
		ConnPolicy: func(options proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if a.isProxy(Peer(options.Upstream.String())) {
				return proxyproto.USE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}
