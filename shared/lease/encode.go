package lease

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// MaxMessage is the largest message, in bytes: the largest legal envelope fits, and it fits a NATS server's default payload
// of 1 MiB with its headers.
const MaxMessage = 1_000_000

// EncodeEnvelope checks e as one to be sent on the subject of its region and shard, and writes it as bytes.
func EncodeEnvelope(e *leasepb.Envelope) ([]byte, error) {
	if err := CheckEnvelope(e, LeaseSubject(e.GetRegion(), int(e.GetShard()))); err != nil {
		return nil, err
	}
	return encode("envelope", e)
}

// DecodeEnvelope reads an envelope that came on subject and checks it.
func DecodeEnvelope(data []byte, subject string) (*leasepb.Envelope, error) {
	e := new(leasepb.Envelope)
	if err := decode("envelope", data, e); err != nil {
		return nil, err
	}
	if err := CheckEnvelope(e, subject); err != nil {
		return nil, err
	}
	return e, nil
}

// EncodeReply checks r as the reply to asked and writes it as bytes.
func EncodeReply(r *leasepb.Reply, asked *leasepb.Envelope) ([]byte, error) {
	if err := CheckReply(r, asked); err != nil {
		return nil, err
	}
	return encode("reply", r)
}

// DecodeReply reads a reply to asked and checks it.
func DecodeReply(data []byte, asked *leasepb.Envelope) (*leasepb.Reply, error) {
	r := new(leasepb.Reply)
	if err := decode("reply", data, r); err != nil {
		return nil, err
	}
	if err := CheckReply(r, asked); err != nil {
		return nil, err
	}
	return r, nil
}

func encode(what string, m proto.Message) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("%s of %d bytes; send at most %d", what, len(data), MaxMessage)
	}
	return data, nil
}

// decode drops fields that this version does not know, so that a later one may add some.
func decode(what string, data []byte, m proto.Message) error {
	if len(data) > MaxMessage {
		return fmt.Errorf("%s of %d bytes; at most %d are read", what, len(data), MaxMessage)
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
