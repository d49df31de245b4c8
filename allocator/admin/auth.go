package admin

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// A guesser gets maxFailures wrong tokens a failureWindow from one address; then every token of that address, right or wrong,
// is refused until the window has passed.
const (
	maxFailures     = 10
	failureWindow   = time.Minute
	maxFailureAddrs = 4096
)

// holderKey is where a request keeps the credential that authenticate accepted.
const holderKey = "annona.holder"

// authenticate lets a request through that shows a credential, or that asks for a public route. Everything else is refused,
// known to the router or not, so that a stranger learns nothing of what there is.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if isPublic(c.Path()) {
			return next(c)
		}
		token, ok := bearer(c.Request())
		if !ok {
			return errUnauthenticated
		}
		credential, known := find(*s.credentials.Load(), token)
		if !known {
			// A right token passes whatever came from its address: a neighbour that guesses must not lock an operator out.
			if wait := s.failures.judge(peer(c.Request()), s.cfg.Now()); wait > 0 {
				return &tooManyFailuresError{wait: wait}
			}
			s.cfg.Log.WarnContext(c.Request().Context(), "admin credential refused", "route", c.Path())
			return errUnauthenticated
		}
		c.Set(holderKey, credential)
		return next(c)
	}
}

// require refuses a credential whose role does not include needed.
func require(needed Role) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if !holder(c).Role.Allows(needed) {
				return errForbidden
			}
			return next(c)
		}
	}
}

// holder returns the credential that authenticate accepted.
func holder(c echo.Context) Credential {
	credential, _ := c.Get(holderKey).(Credential)
	return credential
}

// bearer returns the token of an Authorization header; a token anywhere else, as in the URL, is none.
func bearer(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}

// peer is the network that a request came from: an IPv6 client owns its whole /64. Forwarding headers are not asked, anybody
// can write them.
func peer(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits)
	return prefix
}

// failures counts wrong tokens by address, at most maxFailureAddrs of them: where more fail at once than that, the count that
// ends first is forgotten, so such an attacker buys guesses with addresses.
type failures struct {
	mu    sync.Mutex
	addrs map[netip.Prefix]failureCount
	order []netip.Prefix // the same addresses, as their windows end
}

type failureCount struct {
	wrong int
	ends  time.Time
}

func newFailures() *failures { return &failures{addrs: map[netip.Prefix]failureCount{}} }

// judge counts a wrong token and returns how long addr must wait, 0 if it need not.
func (f *failures) judge(addr netip.Prefix, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked(now)
	count, known := f.addrs[addr]
	if count.wrong >= maxFailures {
		return count.ends.Sub(now)
	}
	if !known {
		count.ends = now.Add(failureWindow)
		f.order = append(f.order, addr)
	}
	count.wrong++
	f.addrs[addr] = count
	return 0
}

// forgetLocked drops what has ended, and makes room for one more.
func (f *failures) forgetLocked(now time.Time) {
	for len(f.order) > 0 && (len(f.order) >= maxFailureAddrs || !now.Before(f.addrs[f.order[0]].ends)) {
		delete(f.addrs, f.order[0])
		f.order = f.order[1:]
	}
}
