package bucket_test

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// refillCase is one refill, its numbers as a script gets them.
type refillCase struct {
	budget  limit.Budget
	level   limit.Micro
	elapsed limit.Micros
}

// TestRefillEqualsLimit: the scripts' arithmetic in doubles is shared/limit's in 128 bits, to the last micro-token.
func TestRefillEqualsLimit(t *testing.T) {
	mini := miniredis.RunT(t)
	for name, addr := range map[string]string{"miniredis": mini.Addr(), "redis": buckettest.StartRedis(t).Addr} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
			defer client.Close()
			checkRefills(t, client, edgeCases())
			random := rand.New(rand.NewPCG(1, 2))
			for range 40 {
				checkRefills(t, client, randomCases(random, 500))
			}
		})
	}
}

// checkRefills computes all cases in one script call.
func checkRefills(t *testing.T, client *redis.Client, cases []refillCase) {
	t.Helper()
	const script = `
		local reply = {}
		for i = 1, #ARGV, 4 do
			local after, took = refill(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]) * MICRO, tonumber(ARGV[i + 3]))
			reply[#reply + 1], reply[#reply + 2] = text(after), text(took)
		end
		return reply`
	args := make([]any, 0, 4*len(cases))
	for _, c := range cases {
		args = append(args, int64(c.level), int64(c.elapsed), int64(c.budget.Capacity), int64(c.budget.Rate))
	}
	reply, err := client.Eval(t.Context(), bucket.Common()+script, nil, args...).StringSlice()
	if err != nil || len(reply) != 2*len(cases) {
		t.Fatalf("%d values, %v", len(reply), err)
	}
	for i, c := range cases {
		after, took := c.budget.Refill(c.level, c.elapsed)
		if reply[2*i] != strconv.FormatInt(int64(after), 10) || reply[2*i+1] != strconv.FormatInt(int64(took), 10) {
			t.Errorf("Refill of %d after %d µs, %s = (%s, %s), limit says (%d, %d)",
				c.level, c.elapsed, c.budget, reply[2*i], reply[2*i+1], after, took)
		}
	}
}

// edgeCases combines the largest and smallest of every number, and their neighbours.
func edgeCases() []refillCase {
	var cases []refillCase
	elapses := []limit.Micros{-1 << 52, -1, 0, 1, 999_999, 1_000_000, 1_000_001, 1_800_000_000_000_000, limit.Never - 1, limit.Never}
	rates := []limit.Rate{0, 1, 2, 3, 999_999, 1_000_000, 1_000_001, 333_333_333, limit.MaxRate/3 + 1, limit.MaxRate - 1, limit.MaxRate}
	for _, capacity := range []limit.Tokens{0, 1, 2, 8_999, 9_000, 9_001, limit.MaxTokens / 7, limit.MaxTokens - 1, limit.MaxTokens} {
		for _, rate := range rates {
			b := limit.Budget{Capacity: capacity, Rate: rate}
			for _, level := range []limit.Micro{-limit.MaxTokens.Micro(), -1, 0, 1, capacity.Micro() / 3, capacity.Micro() - 1, capacity.Micro(), capacity.Micro() + 1} {
				full := b.TimeTo(capacity.Micro() - level)
				for _, elapsed := range append(elapses, full-1, full, full+1) {
					cases = append(cases, refillCase{b, level, min(elapsed, limit.Never)})
				}
			}
		}
	}
	return cases
}

// randomCases draws numbers of every magnitude, elapsed often near the time to full.
func randomCases(random *rand.Rand, n int) []refillCase {
	magnitude := func(most int64) int64 {
		return random.Int64N(1 + random.Int64N(1+random.Int64N(1+random.Int64N(most))))
	}
	cases := make([]refillCase, n)
	for i := range cases {
		b := limit.Budget{
			Capacity: limit.Tokens(magnitude(int64(limit.MaxTokens) + 1)),
			Rate:     limit.Rate(magnitude(int64(limit.MaxRate) + 1)),
		}
		level := limit.Micro(random.Int64N(int64(b.Capacity.Micro())+1)) - limit.Micro(magnitude(int64(limit.MaxTokens.Micro())))
		elapsed := limit.Micros(magnitude(int64(limit.Never)))
		if full := b.TimeTo(b.Capacity.Micro() - level); i%2 == 0 && full > 0 {
			elapsed = limit.Micros(random.Int64N(int64(full) + 2))
		}
		cases[i] = refillCase{b, level, elapsed}
	}
	return cases
}
