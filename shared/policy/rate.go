package policy

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

const day = 24 * time.Hour

// rate is what a document writes as `100/min`: so many tokens in so much time.
type rate struct {
	tokens limit.Tokens
	per    time.Duration
}

const rateRemedy = "write a whole number and a time, such as 100/min, 5/s, 1000/h, 10000/day or 100/90s"

// periods are the words for a time in a rate.
var periods = map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour, "day": day}

// The longest and the shortest time of a rate. Longer ones belong to windows, shorter ones below a script's clock.
const (
	minPeriod = time.Millisecond
	maxPeriod = 366 * day
)

func parseRate(text string) (rate, *fault) {
	count, word, ok := strings.Cut(text, "/")
	if !ok {
		return rate{}, faultf(rateRemedy, "the rate %s names no time", shown(text))
	}
	tokens, f := parseTokens(count)
	if f != nil {
		return rate{}, faultf(f.remedy, "in the rate %s, %s", shown(text), f.message)
	}
	per, f := parsePeriod(word)
	if f != nil {
		return rate{}, faultf(f.remedy, "in the rate %s, %s", shown(text), f.message)
	}
	r := rate{tokens: tokens, per: per}
	floor, _ := r.micro()
	switch {
	case floor > uint64(limit.MaxRate):
		return rate{}, faultf(fmt.Sprintf("write at most %d/s", limit.MaxTokens),
			"the rate %s is more than %d tokens a second", shown(text), limit.MaxTokens)
	case floor == 0 && tokens > 0:
		return rate{}, faultf("write a higher rate; the lowest is 1 token in 10⁶ seconds (about 11 days)",
			"the rate %s is less than a millionth of a token a second", shown(text))
	}
	return r, nil
}

func parsePeriod(word string) (time.Duration, *fault) {
	if per, ok := periods[word]; ok {
		return per, nil
	}
	switch strings.ToLower(word) {
	case "sec", "second", "seconds":
		return 0, faultf("write /s", "%s is no time", shown(word))
	case "m", "minute", "minutes", "mn":
		return 0, faultf("write /min", "%s is no time", shown(word))
	case "hour", "hours", "hr":
		return 0, faultf("write /h", "%s is no time", shown(word))
	case "d", "days":
		return 0, faultf("write /day", "%s is no time", shown(word))
	}
	per, err := time.ParseDuration(word)
	switch {
	case err != nil:
		return 0, faultf(rateRemedy, "%s is no time", shown(word))
	case per < minPeriod || per > maxPeriod:
		return 0, faultf("write a time from 1ms to 366 days (8784h)", "the time %s is out of range", shown(word))
	}
	return per, nil
}

// micro returns r in micro-tokens a second, ⌊N · 10⁶ / seconds⌋, and what the division left over, both exact: N · 10⁶ · 10⁹
// fits 128 bits, and the quotient 64, as per is at least a millisecond.
func (r rate) micro() (floor, rest uint64) {
	hi, lo := bits.Mul64(uint64(r.tokens)*limit.MicroPerToken, uint64(time.Second))
	return bits.Div64(hi, lo, uint64(r.per))
}

// flooring warns where whole micro-tokens a second lose more than 1 % of r, which happens to rates below 100 of them.
func (r rate) flooring() *fault {
	floor, rest := r.micro()
	exact := float64(floor) + float64(rest)/float64(r.per)
	lost := 1 - float64(floor)/exact
	if r.tokens == 0 || lost <= 0.01 {
		return nil
	}
	seconds := uint64(r.tokens) * limit.MicroPerToken / (floor + 1)
	next := time.Duration(seconds) * time.Second
	return faultf(fmt.Sprintf("to round up instead write %d/%s", r.tokens, next),
		"the refill is kept in whole micro-tokens a second: %d is %.1f %% less than written", floor, math.Floor(lost*1000)/10)
}

// words writes r for a person: "100 per minute", "100 per 90 seconds".
func (r rate) words() string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{day, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}, {time.Millisecond, "millisecond"}} {
		switch {
		case r.per == unit.length:
			return fmt.Sprintf("%d per %s", r.tokens, unit.name)
		case r.per%unit.length == 0:
			return fmt.Sprintf("%d per %d %ss", r.tokens, r.per/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%d per %s", r.tokens, r.per)
}

// parseTokens reads a whole number of tokens in decimal digits, 0 to MaxTokens.
func parseTokens(text string) (limit.Tokens, *fault) { return parseAmount(text, limit.MaxTokens) }

// parseCost reads a cost, which may be as large as a window's limit. That it fits its policy is seen elsewhere.
func parseCost(text string) (limit.Tokens, *fault) { return parseAmount(text, limit.MaxWindowTokens) }

// parseAmount reads a whole number of tokens in decimal digits, 0 to most.
func parseAmount(text string, most limit.Tokens) (limit.Tokens, *fault) {
	remedy := fmt.Sprintf("write a whole number from 0 to %d", most)
	if strings.HasPrefix(text, "-") {
		return 0, faultf(remedy+"; 0 denies all", "%s is negative", shown(text))
	}
	if text == "" || strings.Trim(text, "0123456789") != "" || (len(text) > 1 && text[0] == '0') {
		return 0, faultf(remedy+" in plain decimal digits", "%s is no whole number", shown(text))
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit.Tokens(number) > most {
		return 0, faultf(remedy, "%s is too large", shown(text))
	}
	return limit.Tokens(number), nil
}

// parsePercent reads `10%` or `12.5 %` as parts per million, 0 to 10⁶, exactly.
func parsePercent(text string) (int64, *fault) {
	const remedy = "write a percentage from 0% to 100%, with at most four decimals, such as 10% or 2.5%"
	number, ok := strings.CutSuffix(text, "%")
	number = strings.TrimSuffix(number, " ")
	whole, decimals, dotted := strings.Cut(number, ".")
	const ppmDigits = 4 // 1 % is 10⁴ parts per million
	if !ok || whole == "" || len(whole) > 3 || (dotted && decimals == "") || len(decimals) > ppmDigits ||
		strings.Trim(whole+decimals, "0123456789") != "" {
		return 0, faultf(remedy, "%s is no percentage", shown(text))
	}
	ppm, err := strconv.ParseInt(whole+decimals+strings.Repeat("0", ppmDigits-len(decimals)), 10, 64)
	if err != nil || ppm > limit.Whole {
		return 0, faultf(remedy, "%s is more than the whole", shown(text))
	}
	return ppm, nil
}

// parseWait reads a duration from 0 to most.
func parseWait(text string, most time.Duration) (time.Duration, *fault) {
	remedy := fmt.Sprintf("write a duration with its unit from 0s to %s, such as 500ms", most)
	wait, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, faultf(remedy, "%s is no duration", shown(text))
	case wait < 0:
		return 0, faultf(remedy, "%s is negative", shown(text))
	case wait > most:
		return 0, faultf(remedy, "%s is too long", shown(text))
	}
	return wait, nil
}
