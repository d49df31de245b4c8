package lease

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

var update = flag.Bool("update", false, "write the bytes of golden messages that have none yet; old bytes are never written again")

// read returns the golden message called name, from its text.
func read(t testing.TB, name string, m proto.Message) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txtpb"))
	if err != nil {
		t.Fatal(err)
	}
	if err := prototext.Unmarshal(text, m); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func envelope(t testing.TB, name string) *leasepb.Envelope {
	m := new(leasepb.Envelope)
	read(t, name, m)
	return m
}

func reply(t testing.TB, name string) *leasepb.Reply {
	m := new(leasepb.Reply)
	read(t, name, m)
	return m
}

// bytesOf returns the golden message's bytes as a release wrote them.
func bytesOf(t testing.TB, name string, encode func() ([]byte, error)) []byte {
	t.Helper()
	file := filepath.Join("testdata", name+".hex")
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) && *update {
		data, err := encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(hex.EncodeToString(data)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return data
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var goldenEnvelopes = []string{"envelope_first", "envelope_full", "envelope_heartbeat"}

// TestGoldenEnvelopes: agents and allocators of different releases run side by side, so bytes once written must mean the same
// for ever, and what is written now must be those bytes.
func TestGoldenEnvelopes(t *testing.T) {
	for _, name := range goldenEnvelopes {
		t.Run(name, func(t *testing.T) {
			want := envelope(t, name)
			old := bytesOf(t, name, func() ([]byte, error) { return EncodeEnvelope(want) })
			got, err := DecodeEnvelope(old, LeaseSubject(want.GetRegion(), int(want.GetShard())))
			if err != nil || !proto.Equal(got, want) {
				t.Errorf("DecodeEnvelope = %v, %v\nwant %v", got, err, want)
			}
			if now, err := EncodeEnvelope(want); err != nil || string(now) != string(old) {
				t.Errorf("EncodeEnvelope = %x, %v\nwant %x", now, err, old)
			}
		})
	}
}

// TestGoldenReplies is the same for what the allocator answers.
func TestGoldenReplies(t *testing.T) {
	asked := envelope(t, "envelope_full")
	for _, name := range []string{"reply_answers", "reply_refused"} {
		t.Run(name, func(t *testing.T) {
			want := reply(t, name)
			old := bytesOf(t, name, func() ([]byte, error) { return EncodeReply(want, asked) })
			got, err := DecodeReply(old, asked)
			if err != nil || !proto.Equal(got, want) {
				t.Errorf("DecodeReply = %v, %v\nwant %v", got, err, want)
			}
			if now, err := EncodeReply(want, asked); err != nil || string(now) != string(old) {
				t.Errorf("EncodeReply = %x, %v\nwant %x", now, err, old)
			}
		})
	}
}

// TestDecodeDropsUnknownFields: a later release may add fields; this one reads the rest.
func TestDecodeDropsUnknownFields(t *testing.T) {
	want := envelope(t, "envelope_first")
	data, err := EncodeEnvelope(want)
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, 0xfa, 0x3e, 3, 'n', 'e', 'w') // field 1007, three bytes
	got, err := DecodeEnvelope(data, "annona.lease.eu.3")
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("DecodeEnvelope = %v, %v\nwant %v", got, err, want)
	}
}

// TestMaxMessage: the largest legal envelope fits, and nothing larger is read or written.
func TestMaxMessage(t *testing.T) {
	e := envelope(t, "envelope_full")
	item := e.GetItems()[0]
	item.Policy, item.Variant = strings.Repeat("p", MaxName), strings.Repeat("v", MaxName)
	item.Sealed, item.Traceparent = make([]byte, MaxSealed), strings.Repeat("t", MaxTrace)
	item.Revision, item.Session, item.Seq = MaxCount, MaxCount, MaxCount
	item.Spent, item.Returned, item.Lapsed, item.Denied = MaxCount, MaxCount, MaxCount, MaxCount
	e.Items = nil
	for i := range MaxItems {
		another := proto.CloneOf(item)
		another.Key[0], another.Key[1] = byte(i>>8), byte(i)
		e.Items = append(e.Items, another)
	}
	data, err := EncodeEnvelope(e)
	if err != nil {
		t.Fatalf("the largest legal envelope is refused: %v", err)
	}
	if _, err := DecodeEnvelope(data, "annona.lease.us-east-1.31"); err != nil {
		t.Errorf("the largest legal envelope does not decode: %v", err)
	}
	if _, err := DecodeEnvelope(make([]byte, MaxMessage+1), "annona.lease.us-east-1.31"); err == nil {
		t.Error("a message beyond the largest was read")
	}
	if _, err := DecodeReply(make([]byte, MaxMessage+1), e); err == nil {
		t.Error("a reply beyond the largest was read")
	}
	t.Logf("the largest legal envelope has %d bytes of %d", len(data), MaxMessage)
}

// FuzzDecodeEnvelope: whatever bytes come, decoding neither panics nor accepts what does not encode again to the same message.
func FuzzDecodeEnvelope(f *testing.F) {
	for _, name := range goldenEnvelopes {
		e := envelope(f, name)
		data, err := EncodeEnvelope(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, LeaseSubject(e.GetRegion(), int(e.GetShard())))
	}
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		e, err := DecodeEnvelope(data, subject)
		if err != nil {
			return
		}
		again, err := EncodeEnvelope(e)
		if err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		if same, err := DecodeEnvelope(again, subject); err != nil || !proto.Equal(same, e) {
			t.Fatalf("%v, %v\nwant %v", same, err, e)
		}
	})
}

// FuzzDecodeReply is the same for replies.
func FuzzDecodeReply(f *testing.F) {
	asked := envelope(f, "envelope_full")
	for _, name := range []string{"reply_answers", "reply_refused"} {
		data, err := EncodeReply(reply(f, name), asked)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeReply(data, asked)
		if err != nil {
			return
		}
		if _, err := EncodeReply(r, asked); err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
	})
}
