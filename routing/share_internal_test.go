package routing

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestByteStreamsDoNotQueueOnTheLine simulates a network line, and sends as many bytes of streams
// as share permits. The line must be used at 60 % of its possible rate at least. Yet the line's
// queue must stay so short that other data, sent next, waits for at most three times shareDelay and
// four pieces.
func TestByteStreamsDoNotQueueOnTheLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(250_000, 100e6).Draw(t, "bytes a second")
		way := time.Duration(rapid.IntRange(1, 150).Draw(t, "ms there and back")) * time.Millisecond
		var h share
		now := time.Unix(0, 0)
		free := now // when the line will have sent everything so far
		type arrival struct {
			number uint64
			at     time.Time
		}
		var line []arrival
		var number uint64
		var behind time.Duration
		arrived, since := 0, now.Add(15*time.Second)
		end := since.Add(10 * time.Second)
		for now.Before(end) {
			for h.room() {
				number++
				h.leaving = bytesPiece
				h.left(number, now)
				if free.Before(now) {
					free = now
				}
				free = free.Add(time.Duration(float64(bytesPiece) / rate * 1e9))
				line = append(line, arrival{number, free.Add(way)})
			}
			if now.After(since) {
				behind = max(behind, free.Sub(now))
				arrived += bytesPiece
			}
			now = line[0].at
			h.released(line[0].number, now)
			line = line[1:]
		}
		used := float64(arrived) / end.Sub(since).Seconds()
		possible := min(rate, mostWindow/(way.Seconds()+bytesPiece/rate))
		if used < 0.6*possible {
			t.Errorf("the byte streams transferred %.0f bytes a second; want at least 60 %% of %.0f", used, possible)
		}
		if most := 3*shareDelay + time.Duration(float64(4*bytesPiece)/rate*1e9); behind > most {
			t.Errorf("a message behind the streams' bytes waits for %v; want at most %v", behind, most)
		}
		if h.out > mostWindow+bytesPiece {
			t.Errorf("%d bytes are in flight; want at most mostWindow and a piece", h.out)
		}
	})
}

// TestWindowGrowsSlowlyAfterItsFirstReduction lets the window shrink while one packet is in flight.
// From then on, an arrival must enlarge it by at most one piece per window.
func TestWindowGrowsSlowlyAfterItsFirstReduction(t *testing.T) {
	var h share
	now := time.Unix(0, 0)
	for i, took := range []time.Duration{time.Millisecond, time.Second, time.Millisecond} {
		h.room()
		before := h.window
		h.leaving = bytesPiece
		h.left(uint64(i+1), now)
		now = now.Add(took)
		h.released(uint64(i+1), now)
		if shrank := h.window < before; shrank != (took > shareDelay) {
			t.Errorf("a packet that took %v changed the window from %d to %d bytes", took, before, h.window)
		}
		if i == 2 && h.window > before+bytesPiece*bytesPiece/before+1 {
			t.Errorf("the window grew from %d to %d bytes with the next packet; want at most one piece per window", before, h.window)
		}
	}
}
