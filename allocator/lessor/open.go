package lessor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
)

// termBytes is the length of a term's name: random enough never to come twice.
const termBytes = 16

// terms are the writers' terms that the journal knows, each with the number of its last record there (PROTOCOL.md F1). It is
// bounded as the ledger's own list is: an agent that echoes one older than that costs a journal epoch, never a token.
type terms struct {
	last  map[string]uint64
	order []string // oldest first
}

// holds reports whether the journal has the record that an agent was told of.
func (t *terms) holds(term string, number uint64) bool {
	last, known := t.last[term]
	return known && number <= last
}

// set notes that term reaches to the record numbered last.
func (t *terms) set(term string, last uint64) {
	if _, known := t.last[term]; !known {
		if t.last == nil {
			t.last = map[string]uint64{}
		}
		t.order = append(t.order, term)
		if len(t.order) > ledger.MaxTerms {
			delete(t.last, t.order[0])
			t.order = t.order[1:]
		}
	}
	t.last[term] = max(t.last[term], last)
}

// begun notes a Begun. Terms that were lost are dealt with by the epoch that it began, wherever they reached to: any other
// agent that echoes one changes nothing more.
func (t *terms) begun(b *factpb.Begun, number uint64) {
	for _, lost := range b.GetLost() {
		t.set(lost, math.MaxUint64)
	}
	t.set(b.GetTerm(), number)
}

// open replays the journal into a new ledger and begins a term of this writer's own, which fences any other (F1, F2).
func (s *shard) open(ctx context.Context) error {
	n, err := s.current()
	if err != nil {
		return err
	}
	s.loop.books, s.loop.terms, s.loop.term, s.loop.last = ledger.New(), terms{}, "", 0
	last, err := s.lessor.cfg.Journal.Replay(ctx, s.number, s.replay)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	s.loop.last = last
	term := newTerm()
	return s.begin(term, s.loop.books.Begin(s.lessor.cfg.Now(), term, n.terms, false))
}

// replay applies one record of the journal.
func (s *shard) replay(number uint64, record []byte) error {
	batch := &factpb.Batch{}
	if err := proto.Unmarshal(record, batch); err != nil {
		return fmt.Errorf("record %d is none of a ledger; a later release or another program wrote it: %w", number, err)
	}
	for _, fact := range batch.GetFacts() {
		if begun := fact.GetBegun(); begun != nil {
			s.loop.term = begun.GetTerm()
			s.loop.terms.begun(begun, number)
		}
		s.loop.books.Apply(fact)
	}
	s.loop.terms.set(s.loop.term, number)
	return nil
}

// begin makes fact, a Begun, the newest record and its term this writer's.
func (s *shard) begin(term string, fact *factpb.Fact) error {
	s.loop.books.Apply(fact)
	var r records
	if err := r.add(fact); err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	// Before the commit: the record is the new term's. Counted to the old one, it could stand in for one that was lost.
	s.loop.term = term
	if err := s.commit(nil, &r); err != nil {
		return err
	}
	s.loop.terms.begun(fact.GetBegun(), s.loop.last)
	return nil
}

// beginEpoch begins a journal epoch if an envelope echoes what the journal lacks: it was lost, or rolled back, so what it
// gave out is unknown, and every pool holds nothing until that has run out (F1).
func (s *shard) beginEpoch(n *numbers, batch []*envelope) error {
	var lost []string
	seen := map[string]bool{}
	for _, env := range batch {
		if echo := env.GetTerm(); echo != "" && !seen[echo] && !s.loop.terms.holds(echo, env.GetSequence()) {
			seen[echo] = true
			lost = append(lost, echo)
			s.log.Error("an agent echoes a term that the journal has not, or not so far: the journal was lost or rolled back; "+
				"this shard's pools are empty until every lease has run out",
				"region", env.GetRegion(), "echo", echo, "sequence", env.GetSequence(), "last", s.loop.last)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	term := newTerm()
	if err := s.begin(term, s.loop.books.Begin(s.lessor.cfg.Now(), term, n.terms, true, lost...)); err != nil {
		return err
	}
	s.lessor.countEpoch(context.Background())
	return nil
}

func newTerm() string {
	raw := make([]byte, termBytes)
	_, _ = rand.Read(raw) // it never fails
	return hex.EncodeToString(raw)
}
