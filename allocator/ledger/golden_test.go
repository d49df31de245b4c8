package ledger

import (
	"encoding/hex"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
)

// TestGoldenJournal: a journal that an earlier release wrote adds up to what it added up to then, whatever is decided now. The
// journal is never written again; -update makes one only where there is none.
func TestGoldenJournal(t *testing.T) {
	const journal, state = "testdata/journal_1.hex", "testdata/journal_1.state"
	if _, err := os.Stat(journal); os.IsNotExist(err) && *update {
		writeGolden(t, journal, state)
	}
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	batch := new(factpb.Batch)
	if err := proto.Unmarshal(data, batch); err != nil {
		t.Fatal(err)
	}
	l := New()
	for _, fact := range batch.GetFacts() {
		l.Apply(fact)
	}
	if got := l.String(); got != string(want) {
		t.Errorf("%d facts add up to\n%s\nwant\n%s", len(batch.GetFacts()), got, want)
	}
}

// writeGolden plays a world with every kind of fact in it and keeps its journal.
func writeGolden(t *testing.T, journal, state string) {
	random := rand.New(rand.NewPCG(4, 3))
	script := make([]byte, 1500)
	for i := range script {
		script[i] = byte(random.Uint32())
	}
	script[0] = 0 // the numbers change
	w := newWorld(t, script)
	for settled := false; len(w.script) > 0; {
		steps[w.pick(len(steps))](w)
		if !settled && len(w.script) < len(script)/2 {
			settled = true
			w.settleDown()
		}
	}
	batch, kinds := new(factpb.Batch), map[string]int{}
	for _, data := range w.journal {
		fact := new(factpb.Fact)
		if err := proto.Unmarshal(data, fact); err != nil {
			t.Fatal(err)
		}
		batch.Facts = append(batch.Facts, fact)
		switch {
		case fact.GetLapsed() != nil:
			kinds["lapsed"]++
		case fact.GetForgotten() != nil:
			kinds["forgotten"]++
		case fact.GetDecided().GetVoided() > 0:
			kinds["voided"]++
		case fact.GetDecided().GetBegins():
			kinds["begins"]++
		}
	}
	if kinds["lapsed"] == 0 || kinds["forgotten"] == 0 || kinds["voided"] == 0 || kinds["begins"] < 4 {
		t.Fatalf("the golden journal is poor: %v of %d facts", kinds, len(batch.GetFacts()))
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(batch)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for len(data) > 0 {
		n := min(60, len(data))
		lines.WriteString(hex.EncodeToString(data[:n]) + "\n")
		data = data[n:]
	}
	for name, content := range map[string]string{journal: lines.String(), state: w.ledger.String()} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
