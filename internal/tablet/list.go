package tablet

// links make a T part of a list[T]; T embeds links[T].
type links[T any] struct{ prev, next *T }

func (l *links[T]) link() *links[T] { return l }

// list is a doubly linked list through its elements: no allocation, removal from the middle in constant time.
type list[T any] struct{ first, last *T }

func linksOf[T any](e *T) *links[T] {
	return any(e).(interface{ link() *links[T] }).link()
}

func (l *list[T]) append(e *T) {
	k := linksOf(e)
	k.prev, k.next = l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		linksOf(l.last).next = e
	}
	l.last = e
}

func (l *list[T]) remove(e *T) {
	k := linksOf(e)
	if k.prev == nil {
		l.first = k.next
	} else {
		linksOf(k.prev).next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		linksOf(k.next).prev = k.prev
	}
	k.prev, k.next = nil, nil
}
