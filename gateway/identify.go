package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// typeAbuse is the registered problem of a client that does what no honest one does.
const typeAbuse = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"

// callersTrace is the request's context, in the trace of a peer that is trusted to have begun one.
func callersTrace(r *http.Request, client identity.Client) context.Context {
	if !client.Trusted {
		return r.Context()
	}
	return telemetry.Extract(r.Context(), r.Header)
}

func (g *Gateway) identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		x, r := exchangeOf(c), c.Request()
		if x.client.Trusted {
			r = r.WithContext(proxy.WithTrustedPeer(r.Context()))
			c.SetRequest(r)
		} else {
			r.Header.Del(g.config.ClientAddress.Header) // whatever its name: the proxy takes off those of a known one
		}
		id, err := g.identity.Identify(r, x.client)
		if err != nil {
			// Why a credential is wrong helps its owner's operator, and whoever forges one: it is in the log alone.
			g.telemetry.Log.DebugContext(r.Context(), "a request has no identity", "error", err, "request_id", x.requestID)
			return err
		}
		x.id = id
		if err := g.checkBlocks(r.Context(), &id); err != nil {
			return err
		}
		return next(c)
	}
}

// stranger fills p for a request whose credentials were not looked at, and tells whether it was one.
func (g *Gateway) stranger(p *problem, err error) bool {
	if guesser, ok := errors.AsType[*identity.TooManyFailuresError](err); ok {
		p.Type, p.Title, p.Status = typeAbuse, "Too many wrong credentials", http.StatusTooManyRequests
		p.RetryAfter = guesser.Seconds()
		p.Detail = "Too many wrong credentials came from this address. Try again in " + inSeconds(p.RetryAfter) + "."
		return true
	}
	if errors.Is(err, identity.ErrUnavailable) {
		p.Type, p.Title, p.Status = typeCapacity, "Temporarily reduced capacity", http.StatusServiceUnavailable
		p.RetryAfter = g.fields.Load().retryAfter(limit.MicrosPerSecond)
		p.Detail = "Credentials cannot be checked at the moment. Try again in a moment."
		return true
	}
	return false
}
