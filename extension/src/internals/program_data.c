/*-------------------------------------------------------------------------
 *
 * program_data.c
 *		Where the server program keeps its variables: the writable data, zeroed
 *		or not, without what is read-only once the program is loaded.
 *
 * Static variables of other files are looked for there.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>

#include "program_data.h"

/*
 * dl_iterate_phdr() callback; the first object it shows is the program
 * itself, and we stop there.
 */
static int
find_data(struct dl_phdr_info *info, size_t size, void *argument)
{
	BatonProgramData *range = argument;
	uintptr_t	read_only_end = 0;

	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		uint32		type = info->dlpi_phdr[i].p_type;
		uintptr_t	start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
		uintptr_t	end = start + info->dlpi_phdr[i].p_memsz;

		if (type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_W) != 0 &&
			range->start == 0)
		{
			range->start = start;
			range->end = end;
		}
		else if (type == PT_GNU_RELRO)
			read_only_end = end;
	}

	if (read_only_end > range->start && read_only_end <= range->end)
		range->start = read_only_end;
	range->start = TYPEALIGN(sizeof(void *), range->start);
	range->end = TYPEALIGN_DOWN(sizeof(void *), range->end);
	return 1;
}

bool
baton_program_data(BatonProgramData *data)
{
	data->start = data->end = 0;
	dl_iterate_phdr(find_data, data);
	return data->start != 0 && data->start < data->end;
}

static int
find_code(struct dl_phdr_info *info, size_t size, void *argument)
{
	BatonProgramData *range = argument;

	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		uintptr_t	start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;

		if (info->dlpi_phdr[i].p_type == PT_LOAD &&
			(info->dlpi_phdr[i].p_flags & PF_X) != 0 && range->start == 0)
		{
			range->start = start;
			range->end = start + info->dlpi_phdr[i].p_memsz;
		}
	}
	return 1;
}

bool
baton_is_program_code(const void *address)
{
	static BatonProgramData code = {0, 0};

	if (code.end == 0)
		dl_iterate_phdr(find_code, &code);
	return (uintptr_t) address >= code.start && (uintptr_t) address < code.end;
}
