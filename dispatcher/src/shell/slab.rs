//! A table whose entries keep their number. Freed numbers are used again, so
//! whoever keeps a number across time compares a serial as well.

/// The table; at most `limit` entries.
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slab<T> {
    pub fn new(limit: usize) -> Slab<T> {
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
            limit,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// All are below this.
    pub fn numbers(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    /// The number of the new entry; None if the table is full.
    pub fn insert(&mut self, entry: T) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(entry);
            return Some(number);
        }
        if self.entries.len() >= self.limit {
            return None;
        }
        self.entries.push(Some(entry));
        Some(self.entries.len() as u32 - 1)
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(number, entry)| Some((number as u32, entry.as_ref()?)))
    }
}
