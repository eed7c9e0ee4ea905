# A pool of agents on AWS: one network, one cluster placement group, one machine per entry, from the
# image that deploy/packer/aws.pkr.hcl makes.
#
#   evenfall plan deploy FILE --out DIR
#   terraform apply -var-file=DIR/terraform.tfvars.json -var=settings_dir=DIR

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.0"
    }
  }
}

provider "aws" {
  region = var.region
}

resource "aws_vpc" "pool" {
  cidr_block = var.subnet
  tags       = { Name = var.name }
}

resource "aws_subnet" "pool" {
  vpc_id                  = aws_vpc.pool.id
  cidr_block              = var.subnet
  availability_zone       = var.zone
  map_public_ip_on_launch = true
}

resource "aws_internet_gateway" "pool" {
  vpc_id = aws_vpc.pool.id
}

resource "aws_route_table" "pool" {
  vpc_id = aws_vpc.pool.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.pool.id
  }
}

resource "aws_route_table_association" "pool" {
  subnet_id      = aws_subnet.pool.id
  route_table_id = aws_route_table.pool.id
}

# Feed 9000/udp, agents 9400/tcp and udp, health and metrics 9180 and 9181/tcp.
resource "aws_security_group" "pool" {
  name   = var.name
  vpc_id = aws_vpc.pool.id
  dynamic "ingress" {
    for_each = [["udp", 9000, 9000], ["udp", 9400, 9400], ["tcp", 9180, 9181], ["tcp", 9400, 9400]]
    content {
      protocol    = ingress.value[0]
      from_port   = ingress.value[1]
      to_port     = ingress.value[2]
      cidr_blocks = concat([var.subnet], var.admin_ranges)
    }
  }
  egress {
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_iam_role" "pool" {
  name = "${var.name}-pool"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "key" {
  role = aws_iam_role.pool.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      {
        Effect   = "Allow"
        Action   = "ssm:GetParameter"
        Resource = "arn:aws:ssm:${var.region}:*:parameter${var.key_parameter}"
      },
      {
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = "${aws_s3_bucket.settings.arn}/*"
      },
      ], var.kms_key_arn == "" ? [] : [
      {
        Effect   = "Allow"
        Action   = "kms:Decrypt"
        Resource = var.kms_key_arn
      },
    ])
  })
}

# The way in: `aws ssm start-session --target INSTANCE`.
resource "aws_iam_role_policy_attachment" "session" {
  role       = aws_iam_role.pool.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

# Settings, which machines read every 30 seconds: a change reaches running services, and no change of
# settings stops or replaces a machine, on which the trees were measured.
resource "aws_s3_bucket" "settings" {
  bucket_prefix = "${var.name}-settings-"
  force_destroy = true
}

resource "aws_s3_bucket_public_access_block" "settings" {
  bucket                  = aws_s3_bucket.settings.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_object" "settings" {
  for_each = toset(["agents", "feed", "plan"])
  bucket   = aws_s3_bucket.settings.id
  key      = "${each.key}.toml"
  content  = file("${var.settings_dir}/${each.key}.toml")
}

resource "aws_s3_object" "services" {
  for_each = { for machine in var.machines : machine.name => machine }
  bucket   = aws_s3_bucket.settings.id
  key      = "services/${each.key}"
  content = join(" ", compact([
    "agent:${each.key}",
    each.value.index == 0 ? "plan" : "",
    var.start_feed ? "${each.value.feed_role}:${each.value.feed_name}" : "",
  ]))
}

resource "aws_iam_instance_profile" "pool" {
  name = "${var.name}-pool"
  role = aws_iam_role.pool.name
}

resource "aws_placement_group" "pool" {
  name     = var.name
  strategy = "cluster"
}

# An image by its id, or the newest of the name that deploy/packer/aws.pkr.hcl gives.
data "aws_ami" "evenfall" {
  count       = startswith(var.image, "ami-") ? 0 : 1
  owners      = ["self"]
  most_recent = true
  filter {
    name   = "name"
    values = ["${var.image == "" ? "evenfall" : var.image}-*"]
  }
}

resource "aws_instance" "agent" {
  for_each = { for machine in var.machines : machine.name => machine }

  ami                    = startswith(var.image, "ami-") ? var.image : data.aws_ami.evenfall[0].id
  instance_type          = var.machine_type
  subnet_id              = aws_subnet.pool.id
  private_ip             = each.value.address
  vpc_security_group_ids = [aws_security_group.pool.id]
  iam_instance_profile   = aws_iam_instance_profile.pool.name
  placement_group        = startswith(var.machine_type, "t") ? null : aws_placement_group.pool.name
  tags                   = { Name = each.key }
  depends_on             = [aws_iam_role_policy.key, aws_route_table_association.pool]
  metadata_options {
    http_tokens = "required"
  }
  # Where the settings are, and nothing that changes.
  user_data = <<-END
    #!/bin/sh
    printf '%s\n' s3://${aws_s3_bucket.settings.id} ${each.key} ${var.region} ${var.key_parameter} \
      >/etc/evenfall/source
    systemctl start --no-block evenfall-settings.service
  END
  # A newer image is for new machines; replace one by `terraform apply -replace=...`.
  lifecycle {
    ignore_changes = [ami, user_data]
  }
}

output "agents" {
  value = [for machine in var.machines : "${machine.address}:9400"]
}
