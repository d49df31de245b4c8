package buckettest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The range that ports are taken from: below the one that systems give to outgoing connections, so that none of those takes a
// port between the moment it is found free and the moment a process listens on it.
const firstPort, lastPort = 12_000, 32_000

var handedOut struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort returns a loopback port that nobody listens on and that it has not returned before.
func FreePort() (int, error) {
	handedOut.Lock()
	defer handedOut.Unlock()
	if handedOut.ports == nil {
		handedOut.ports = map[int]bool{}
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if handedOut.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		handedOut.ports[port] = true
		if err := l.Close(); err != nil {
			return 0, err
		}
		return port, nil
	}
	return 0, errors.New("no free port in a thousand tries")
}
