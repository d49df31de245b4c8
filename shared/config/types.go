package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Percent is a share: 0.1 is written 10%.
type Percent float64

var errPercent = errors.New("write a share from 0% to 100%, such as 10%")

// UnmarshalText reads "10%", and "0", which needs no unit.
func (p *Percent) UnmarshalText(text []byte) error {
	number, hasUnit := strings.CutSuffix(string(text), "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(f >= 0 && f <= 100) || (!hasUnit && f != 0) { // written so that NaN is refused
		return errPercent
	}
	*p = Percent(f / 100)
	return nil
}

// Bytes is a size: 10 MiB is written 10MiB.
type Bytes int64

var errBytes = errors.New("write a size such as 512KiB, 10MiB, 1GiB or a whole number of bytes")

// unit is a suffix of a size.
type unit struct {
	suffix string
	size   int64
}

// byteUnits are tried in their order; the plain B comes last, for every other ends in it.
func byteUnits() []unit {
	return []unit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
	}
}

// UnmarshalText reads "10MiB" (1,048,576 bytes each), "10MB" (1,000,000 each) and "10485760".
func (b *Bytes) UnmarshalText(text []byte) error {
	number, size := string(text), int64(1)
	for _, u := range byteUnits() {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/size {
		return errBytes
	}
	*b = Bytes(n * size)
	return nil
}
