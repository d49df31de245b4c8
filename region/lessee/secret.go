package lessee

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
)

const (
	// checkEvery is how often gateways' registrations are compared; unknownEvery while none has been seen. Gateways register
	// at their start and every 5 s.
	checkEvery, unknownEvery = 5 * time.Second, 250 * time.Millisecond
	// registered is how long ago a gateway may have registered to count as running: one that ended, perhaps to be started
	// again with another secret, must not hold up its region for the ten minutes that the store remembers it.
	registered = 15 * time.Second
)

// errSecrets is what an operator must know at once: both halves of the gateways would spend a whole limit each.
var errSecrets = errors.New("gateways of this region hash keys with different secrets, so the agent asks for nothing; " +
	"give every gateway the same hash_secret_file")

// secret is what the region's gateways say about their hash secret. The agent has none of its own: it sends the gateways'
// fingerprint, and while it knows of no gateway it asks for nothing, for all demand is theirs.
type secret struct {
	fingerprint string
	conflict    bool
	// unknown is true if the store could not be asked: what was known stays.
	unknown bool
}

func (s secret) ready() bool { return s.fingerprint != "" && !s.conflict }

func (s secret) problem() error {
	if s.conflict {
		return errSecrets
	}
	return nil
}

// agreed derives the secret from registrations: of running gateways, or where none runs of those remembered, for their leases
// have still to be settled.
func agreed(gateways []bucket.Gateway) secret {
	running := slices.DeleteFunc(slices.Clone(gateways), func(g bucket.Gateway) bool { return g.Heard > registered })
	if len(running) == 0 {
		running = gateways
	}
	var s secret
	for _, g := range running {
		switch {
		case g.Fingerprint == "" || g.Fingerprint == s.fingerprint:
		case s.fingerprint == "":
			s.fingerprint = g.Fingerprint
		default:
			s.conflict = true
		}
	}
	return s
}

// checkSecret reads the registrations beside the loop.
func (l *Lessee) checkSecret(ctx context.Context) {
	l.beside.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, storeWait)
		defer cancel()
		gateways, err := l.store.Gateways(ctx)
		if err != nil {
			l.storeFailed(ctx, err)
			l.secrets <- secret{unknown: true}
			return
		}
		l.secrets <- agreed(gateways)
	})
}

// learn takes in what a check found and sets the time of the next.
func (l *Lessee) learn(s secret) {
	old := l.loop.secret
	if s.unknown || (s.fingerprint == "" && old.fingerprint != "") {
		s = old // nobody is registered now: the last known fingerprint settles what they left
	}
	if s.conflict {
		l.tel.Log.Error(errSecrets.Error())
		l.count(context.Background(), kindSecrets, 1)
	}
	if s.ready() && old.conflict {
		l.tel.Log.Info("the region's gateways agree on one hash secret again; the agent asks")
	}
	l.loop.secret = s
	l.mu.Lock()
	l.mu.secret = s
	l.mu.Unlock()
	if s.ready() || s.conflict {
		l.loop.check.Reset(checkEvery)
	} else {
		l.loop.check.Reset(unknownEvery)
	}
}
