package limittest

import (
	"slices"

	"github.com/annona-gateway/annona/shared/limit"
)

// Slots admit N at the same time. A slot is its gateway's, and free again when it is released or when that gateway has not been
// heard for Lapse.
type Slots struct {
	N     limit.Tokens
	Lapse limit.Micros

	mark  limit.Micros
	heard map[string]limit.Micros // by gateway
	held  []slot
}

type slot struct {
	id, gateway string
}

// Renew says that gateway is alive at an instant. Slots that it lost meanwhile stay lost.
func (s *Slots) Renew(at limit.Micros, gateway string) {
	s.expire(at)
	if s.heard == nil {
		s.heard = map[string]limit.Micros{}
	}
	s.heard[gateway] = s.mark
}

// Take asks for one slot for each of ids, all or none, for a gateway that is alive. A clock that goes back stands still.
func (s *Slots) Take(at limit.Micros, gateway string, ids ...string) Answer {
	s.expire(at)
	cost := limit.Tokens(len(ids))
	used := limit.Tokens(len(s.held))
	_, alive := s.heard[gateway]
	a := Answer{Admitted: cost == 0 || alive && used+cost <= s.N}
	switch {
	case a.Admitted:
		for _, id := range ids {
			s.held = append(s.held, slot{id, gateway})
		}
	case cost > s.N:
		a.RetryIn = limit.Never
	}
	a.Remaining = max(0, s.N-limit.Tokens(len(s.held)))
	return a
}

// Release frees a slot; it tells whether it was held. A slot is freed once, however often it is released.
func (s *Slots) Release(at limit.Micros, id string) bool {
	s.expire(at)
	before := len(s.held)
	s.held = slices.DeleteFunc(s.held, func(held slot) bool { return held.id == id })
	return len(s.held) < before
}

// Held returns how many slots are held at an instant.
func (s *Slots) Held(at limit.Micros) limit.Tokens {
	s.expire(at)
	return limit.Tokens(len(s.held))
}

func (s *Slots) expire(at limit.Micros) {
	s.mark = max(s.mark, at)
	for gateway, heard := range s.heard {
		if s.mark >= heard+s.Lapse {
			delete(s.heard, gateway)
		}
	}
	s.held = slices.DeleteFunc(s.held, func(held slot) bool {
		_, alive := s.heard[held.gateway]
		return !alive
	})
}
