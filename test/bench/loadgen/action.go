package loadgen

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
)

// Numbers in actions always have the same number of digits, so each stands at the same
// place in every action.
const (
	firstNumber  = 1_000_000_000
	numberDigits = 10
	timeDigits   = 19
)

// A Format is the form of a channel's actions.
type Format struct {
	fixed [4][]byte // text before, between and after the numbers, up to the action's text
	text  int       // length of the action's text in bytes
	size  int       // length of an action in bytes
}

// textEnd stands after the text.
const textEnd = `"}}}`

// actionStart stands before the params.
const actionStart = `{"jsonrpc":"2.0","method":"action","params":`

// NewFormat returns the form of actions with size bytes on a channel.
func NewFormat(channel string, size int) (*Format, error) {
	f := &Format{size: size, fixed: [4][]byte{
		[]byte(actionStart + `{"channel":` + strconv.Quote(channel) + `,"serverSeq":`),
		[]byte(`,"action":{"type":"chat/delta","turnId":"turn-1","n":`),
		[]byte(`,"at":`),
		[]byte(`,"content":"`),
	}}
	f.text = size - 2*numberDigits - timeDigits - len(textEnd)
	for _, part := range f.fixed {
		f.text -= len(part)
	}
	if f.text < 0 || f.text > len(corpus())/2 {
		return nil, fmt.Errorf("no action on %s can have %d bytes", channel, size)
	}
	return f, nil
}

// Append appends action n with this serverSeq. at is the time of sending in Unix
// nanoseconds.
func (f *Format) Append(b []byte, serverSeq, n, at int64) []byte {
	b = strconv.AppendInt(append(b, f.fixed[0]...), firstNumber+serverSeq, 10)
	b = strconv.AppendInt(append(b, f.fixed[1]...), firstNumber+n, 10)
	b = strconv.AppendInt(append(b, f.fixed[2]...), at, 10)
	b = append(append(b, f.fixed[3]...), f.content(n)...)
	return append(b, textEnd...)
}

// content returns the text of action n.
func (f *Format) content(n int64) []byte {
	all := corpus()
	start := int(n) * f.text % (len(all) - f.text)
	return all[start : start+f.text]
}

// Check returns the numbers in an action. ok is false unless every other byte is as
// expected.
func (f *Format) Check(action []byte) (n, at int64, ok bool) {
	if len(action) != f.size {
		return 0, 0, false
	}
	rest := action
	var numbers [3]int64
	for i, part := range f.fixed {
		if !bytes.HasPrefix(rest, part) {
			return 0, 0, false
		}
		rest = rest[len(part):]
		if i == len(numbers) {
			break
		}
		digits := numberDigits
		if i == 2 {
			digits = timeDigits
		}
		if numbers[i], ok = number(rest[:digits]); !ok {
			return 0, 0, false
		}
		rest = rest[digits:]
	}
	n, at = numbers[1]-firstNumber, numbers[2]
	return n, at, n >= 0 && bytes.Equal(rest[:f.text], f.content(n)) && string(rest[f.text:]) == textEnd
}

func number(digits []byte) (v int64, ok bool) {
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		v = 10*v + int64(d-'0')
	}
	return v, true
}

// corpusSize is so large that no text comes twice in a run, which would improve the
// compression.
const corpusSize = 4 << 20

// corpus returns a text that compresses like a model's output. Its words come from a
// vocabulary with realistic frequencies. Punctuation and line ends are escaped as in
// JSON.
var corpus = sync.OnceValue(func() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	words := vocabulary(rng, 3000)
	common := rand.NewZipf(rng, 1.1, 4, uint64(len(words)-1))
	var next [8 << 10]string // words to choose from with equal chance, which is fast
	for i := range next {
		next[i] = words[common.Uint64()] + [...]string{" ", " ", " ", " ", " ", " ", ", ", ". "}[rng.IntN(8)]
	}
	b := make([]byte, 0, corpusSize+32)
	for x := uint64(1); len(b) < corpusSize; {
		x = x*6364136223846793005 + 1442695040888963407
		b = append(b, next[(x>>32)%uint64(len(next))]...)
	}
	return b[:corpusSize]
})

func vocabulary(rng *rand.Rand, n int) []string {
	const consonants, vowels = "bcdfghlmnprstvw", "aeiou"
	words := make([]string, n)
	for i := range words {
		var w []byte
		for range 1 + rng.IntN(4) {
			w = append(w, consonants[rng.IntN(len(consonants))], vowels[rng.IntN(len(vowels))])
		}
		if rng.IntN(2) == 0 {
			w = append(w, consonants[rng.IntN(len(consonants))])
		}
		words[i] = string(w)
	}
	return words
}
