package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

const (
	// silence is how long after its last word a gateway is forgotten (PROTOCOL.md E7 counts gateways over it).
	silence = 10 * time.Minute
	// maxGateways bounds the list of gateways of one region.
	maxGateways = 1024
	// MaxDocument bounds one mirrored document, in bytes.
	MaxDocument = 4 << 20
)

// Mirror reads what the agents mirrored.
func (s *Store) Mirror(ctx context.Context) (Mirror, error) {
	c := &call{keys: []string{mirrorKey}, args: make([]any, 1)}
	if err := s.single(ctx, mirrorScript, c); err != nil {
		return Mirror{}, err
	}
	m, err := parseMirror(c.reply)
	if err != nil {
		return Mirror{}, couldNotAsk("mirror", err)
	}
	return m, nil
}

// parseMirror reads mirror's reply.
func parseMirror(reply []any) (m Mirror, err error) {
	const names = 5
	if first, err := status(reply); err != nil || first != 1 || len(reply) != 1+names {
		return m, errReply
	}
	values := reply[1:]
	text := func(i int) string { s, _ := values[i].(string); return s }
	number := func(i int) uint64 {
		if text(i) == "" {
			return 0
		}
		n, problem := strconv.ParseUint(text(i), 10, 53)
		if problem != nil {
			err = errReply
		}
		return n
	}
	m.PolicyRevision, m.RegionsRevision = number(0), number(2)
	m.RoundTrip = time.Duration(number(4)) * time.Microsecond
	if text(1) != "" {
		m.Policy = []byte(text(1))
	}
	if text(3) != "" {
		m.Regions = []byte(text(3))
	}
	return m, err
}

// SetMirror writes m: each document only if it is not empty and its revision is not below the stored one's. Watchers are told
// of a changed document.
func (s *Store) SetMirror(ctx context.Context, m Mirror) error {
	if len(m.Policy) > MaxDocument || len(m.Regions) > MaxDocument {
		return couldNotAsk("setmirror", fmt.Errorf("document above %d bytes", MaxDocument))
	}
	if m.PolicyRevision > maxNumber || m.RegionsRevision > maxNumber || m.RoundTrip < 0 {
		return couldNotAsk("setmirror", errors.New("revision or round trip out of range"))
	}
	return s.single(ctx, setMirrorScript, &call{
		keys: []string{mirrorKey},
		args: []any{nil, m.PolicyRevision, m.Policy, m.RegionsRevision, m.Regions, m.RoundTrip.Microseconds()},
	})
}

// Register records a gateway's state; Gateways lists those heard within ten minutes.
func (s *Store) Register(ctx context.Context, g Gateway) error {
	if !isName(g.ID) || !isName(g.Fingerprint) || g.Revision > maxNumber {
		return couldNotAsk("register", errors.New("a gateway's id and fingerprint have 1 to 64 letters, digits, dots, colons and dashes"))
	}
	c := &call{keys: []string{gatewaysKey}, args: []any{nil, g.ID, g.Revision, g.Fingerprint, silence.Microseconds(), maxGateways}}
	if err := s.single(ctx, registerScript, c); err != nil {
		return err
	}
	if first, err := status(c.reply); err != nil || first != 1 {
		return couldNotAsk("register", cmpErr(err, fmt.Errorf("%d gateways are registered already", maxGateways)))
	}
	return nil
}

// Gateways lists the gateways heard of within ten minutes, by id.
func (s *Store) Gateways(ctx context.Context) ([]Gateway, error) {
	c := &call{keys: []string{gatewaysKey}, args: []any{nil, silence.Microseconds()}}
	if err := s.single(ctx, gatewaysScript, c); err != nil {
		return nil, err
	}
	list, err := parseGateways(c.reply)
	if err != nil {
		return nil, couldNotAsk("gateways", err)
	}
	return list, nil
}

func parseGateways(reply []any) ([]Gateway, error) {
	const perGateway = 4
	first, err := status(reply)
	if err != nil || first != 1 || len(reply)%perGateway != 1 {
		return nil, errReply
	}
	f := fields{reply[1:]}
	var list []Gateway
	for len(f.values) > 0 {
		g := Gateway{ID: f.text(), Heard: time.Duration(f.integer()) * time.Microsecond}
		g.Revision, err = strconv.ParseUint(f.text(), 10, 64)
		g.Fingerprint = f.text()
		if err != nil || f.values == nil {
			return nil, errReply
		}
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b Gateway) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// single runs one call of an agent's or a gateway's verb.
func (s *Store) single(ctx context.Context, sc *script, c *call) error {
	ctx, cancel := s.patient(ctx)
	defer cancel()
	return s.run(ctx, sc, c)
}

func isName(text string) bool {
	const most = 64
	if text == "" || len(text) > most {
		return false
	}
	for _, c := range text {
		letter := (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
		if !letter && c != '-' && c != '.' && c != ':' && c != '_' {
			return false
		}
	}
	return true
}
