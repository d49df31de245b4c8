package bucket

import (
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// MaxBlocks bounds the blocks of a region, for every gateway keeps them all in memory.
	MaxBlocks = 10_000
	// MaxReason bounds a block's reason, in bytes.
	MaxReason = 256
)

// Block is an identity that is refused everywhere in the region, whatever the policies say.
type Block struct {
	ID     limit.Key // the hashed identity
	Sealed []byte    // the identity, sealed, for operators
	Reason string
	Left   time.Duration // how long it still lasts; 0: until it is removed
	Since  time.Duration // how long ago it was made, where it is read
}
